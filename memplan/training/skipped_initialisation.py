"""Building a real model without initialising its weights: pages that are never written cost neither time nor memory.

Constructors run on real tensors, because they read values. Only operators that fill, copy or convert large weights are
skipped, and operators that libraries register, such as quantization. The functions of ``torch.nn.init`` are patched
too, because some resample until their values are in range.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import init
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LARGE_ELEMENTS = 1 << 16

_is_skipping = ContextVar("is_skipping", default=False)

_FILLS = {
    "normal_", "uniform_", "fill_", "zero_", "bernoulli_", "random_", "exponential_", "log_normal_", "cauchy_",
    "geometric_", "erfinv_", "mul_", "add_", "sub_", "div_", "clamp_", "clamp_min_", "clamp_max_",
}  # fmt: skip
_COPIES = {"_to_copy", "clone"}
_TORCH_NAMESPACES = ("aten", "prims", "prim")
_FACTORIES = {"randn", "rand", "zeros", "ones", "full"}
_LIKE_FACTORIES = {"randn_like", "rand_like", "zeros_like", "ones_like", "full_like"}
_INITIALISERS = (
    "uniform_", "normal_", "trunc_normal_", "constant_", "ones_", "zeros_", "eye_", "dirac_", "xavier_uniform_",
    "xavier_normal_", "kaiming_uniform_", "kaiming_normal_", "orthogonal_", "sparse_",
    "_no_grad_uniform_", "_no_grad_normal_", "_no_grad_trunc_normal_", "_no_grad_fill_", "_no_grad_zero_",
)  # fmt: skip


@contextmanager
def initialisation_skipped() -> Iterator[None]:
    """Skip the initialisation of large tensors while the context is open."""
    token = _is_skipping.set(True)
    try:
        with _SkippedInitialisation():  # type: ignore[no-untyped-call]  # torch leaves dispatch modes untyped
            yield
    finally:
        _is_skipping.reset(token)


def patch_initialisers() -> None:
    """Make ``torch.nn.init`` skip large tensors inside :func:`initialisation_skipped`, for the rest of this process.

    Call this before the user's modules are imported, because they import the functions by name.
    """
    for name in _INITIALISERS:
        function = getattr(init, name, None)
        if function is not None:
            setattr(init, name, _skipping_large(function))


class _SkippedInitialisation(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves dispatch modes untyped
    """Skips in-place writes to large tensors; returns empty tensors where they are filled, copied or computed."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator, or skip it if it only writes a large tensor."""
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if (name in _FILLS and _is_large(args[0])) or (name == "copy_" and _is_weight(args[0])):
            return args[0]
        if name in _COPIES and _is_weight(args[0]) and _stays_weight(kwargs):
            return _empty_copy(args[0], **kwargs)
        if func.namespace not in _TORCH_NAMESPACES and any(_is_weight(each) for each in args):
            return _empty_results(func, args, kwargs)
        if name in _LIKE_FACTORIES and _is_large(args[0]):
            return torch.empty_like(args[0], dtype=kwargs.get("dtype"))
        if name in _FACTORIES and _on_cpu(kwargs.get("device")) and torch.Size(args[0]).numel() >= LARGE_ELEMENTS:
            return torch.empty(args[0], dtype=_dtype_made(name, args, kwargs))
        return func(*args, **kwargs)


def _is_large(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() >= LARGE_ELEMENTS and value.device.type == "cpu"


def _is_weight(value: Any) -> bool:
    return _is_large(value) and value.is_floating_point()


def _stays_weight(kwargs: dict[str, Any]) -> bool:
    dtype: torch.dtype | None = kwargs.get("dtype")
    return _on_cpu(kwargs.get("device")) and (dtype is None or dtype.is_floating_point)


def _empty_copy(
    weight: torch.Tensor, *, dtype: torch.dtype | None = None, memory_format: Any = None, **_how: Any
) -> torch.Tensor:
    return torch.empty_like(weight, dtype=dtype, memory_format=memory_format or torch.preserve_format)


def _empty_results(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return empty tensors like the results of a library's operator; run it if it has no rule for fake tensors."""
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            like = operator(*args, **kwargs)
    except RuntimeError:  # no rule for fake tensors, or a wrong one
        return operator(*args, **kwargs)
    return tree_map_only(
        torch.Tensor, lambda each: torch.empty_strided(each.shape, each.stride(), dtype=each.dtype), like
    )


def _on_cpu(device: Any) -> bool:
    return device is None or torch.device(device).type == "cpu"


def _dtype_made(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
    dtype: torch.dtype | None = kwargs.get("dtype")
    return torch.tensor(args[1]).dtype if dtype is None and name == "full" else dtype


def _skipping_large(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def skipping(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_skipping.get() and _is_large(tensor):
            return tensor
        return function(tensor, *args, **kwargs)

    return skipping
