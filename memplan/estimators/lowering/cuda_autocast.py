"""CUDA's autocast policy for fake CPU tensors: its operator lists, its casts and its weight cache.

The CPU's policy differs: it runs softmax, layer norm, sums and powers in low precision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from memplan.estimators.fake_tensors.dispatcher import KernelOverrides, argument_names, excluded, overload
from memplan.estimators.lowering.autocast_lists import FP32, FP32_BY_ARGUMENT, LOW_PRECISION, PROMOTE

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._ops import OpOverload

    Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_KEY = "AutocastCPU"


class CudaAutocast:
    """Replaces the CPU's autocast policy by CUDA's, for the rest of this process."""

    def __init__(self) -> None:
        self._kernels = KernelOverrides(_KEY)
        self._casts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._clear_torch_cache = torch.clear_autocast_cache

    def install(self) -> None:
        """Register the kernels; autocast skips operators that only the CPU's lists name."""
        policies: tuple[tuple[tuple[str, ...], Callable[..., Arguments]], ...] = (
            (LOW_PRECISION, self._lowered),
            (FP32, _raised),
            (FP32_BY_ARGUMENT, _raised_by_argument),
            (PROMOTE, _promoted),
        )
        cast = {name: policy for names, policy in policies for name in names}
        for name in self._kernels.registered() - cast.keys():
            self._kernels.skip(name)
        for name, policy in cast.items():
            operator = overload(name)
            if operator is not None:
                self._kernels.replace(name, _outside_autocast(operator, policy))
        torch.clear_autocast_cache = self._clear  # called when the outermost autocast context closes

    def _clear(self) -> None:
        self._casts.clear()
        self._clear_torch_cache()

    def _lowered(self, _operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        dtype = torch.get_autocast_dtype("cpu")

        def lower(value: Any) -> Any:
            return self._cast(value, dtype) if _is_castable(value) else value

        return _mapped(lower, args, kwargs)

    def _cast(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        # aten/src/ATen/autocast_mode.cpp, cached_cast: one copy of a weight until the outermost context closes.
        weight = tensor.dtype is torch.float32 and tensor.requires_grad and tensor.is_leaf and tensor._base is None  # noqa: SLF001 - says whether it is a view
        if not weight or not torch.is_autocast_cache_enabled():
            return tensor.to(dtype)
        if id(tensor) not in self._casts:
            self._casts[id(tensor)] = (tensor, tensor.to(dtype))
        return self._casts[id(tensor)][1]


def _outside_autocast(operator: OpOverload, policy: Callable[..., Arguments]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with excluded(_KEY):
            args, kwargs = policy(operator, args, kwargs)
            return operator(*args, **kwargs)

    return kernel


def _raised(_operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    return _mapped(lambda value: value.to(torch.float32) if _is_castable(value) else value, args, kwargs)


def _raised_by_argument(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    named = {**dict(zip(argument_names(operator), args, strict=False)), **kwargs}
    if _is_castable(args[0]) and named.get("dtype") is None:
        return (), {**named, "dtype": torch.float32}
    return args, kwargs


def _promoted(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    single = any(_is_castable(each) and each.dtype is torch.float32 for each in tree_leaves((args, kwargs)))
    return _raised(operator, args, kwargs) if single else (args, kwargs)


def _mapped(change: Callable[[Any], Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    changed: Arguments = tree_map(change, (args, kwargs))
    return changed


def _is_castable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype is not torch.float64
