"""Python kernels in torch's dispatcher."""

# ruff: noqa: SLF001 - torch keeps the Python side of its dispatcher private

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch._ops import OpOverload

_OF_VALUES = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_LIBRARIES: list[torch.library.Library] = []  # kernels are unregistered when their library is collected


class KernelOverrides:
    """Replaces kernels of ``aten`` operators for one dispatch key until the process ends.

    Args:
        key: dispatch key, e.g. ``AutocastCPU``.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]  # untyped in torch
        _LIBRARIES.append(self._library)

    def replace(self, operator: str, function: Callable[..., Any]) -> None:
        """Use ``function`` as the operator's kernel."""
        self._replace(operator, function, with_keyset=False)

    def _replace(self, operator: str, function: Callable[..., Any], *, with_keyset: bool) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns about overriding
            self._library.impl(  # type: ignore[no-untyped-call]  # untyped in torch
                operator, function, self._key, with_keyset=with_keyset, allow_override=True
            )

    def wrap(self, operator: str, wrapper: Callable[..., Any]) -> None:
        """Use ``wrapper`` as the operator's kernel; its first argument calls the previous kernel."""
        kernel = torch.library.get_kernel(f"aten::{operator}", self._key)

        def wrapped(keys: Any, *args: Any, **kwargs: Any) -> Any:
            return wrapper(functools.partial(kernel.call_boxed, keys), *args, **kwargs)

        self._replace(operator, wrapped, with_keyset=True)

    def skip(self, operator: str) -> None:
        """Let the operator fall through this key."""
        self.replace(operator, torch.library.fallthrough_kernel)

    def registered(self) -> set[str]:
        """Return the ``aten`` operators that have a kernel of their own under this key, without namespace."""
        names = torch._C._dispatch_get_registrations_for_dispatch_key(self._key)
        return {name.removeprefix("aten::") for name in names if name.startswith("aten::")}


def excluded(key: str) -> AbstractContextManager[None]:
    """Exclude this dispatch key while the context is open."""
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    guard: AbstractContextManager[None] = torch._C._ExcludeDispatchKeyGuard(keys)
    return guard


@functools.cache
def depends_on_values(operator: OpOverload) -> bool:
    """Whether the operator's result, or its shape, depends on the values of its operands."""
    return any(tag in operator.tags for tag in _OF_VALUES)


def overload(name: str) -> OpOverload | None:
    """Return an ``aten`` operator by ``name`` or ``name.overload``; None where this torch has none."""
    packet, _, variant = name.partition(".")
    found: OpOverload | None = getattr(getattr(torch.ops.aten, packet, None), variant or "default", None)
    return found


def argument_names(operator: OpOverload) -> list[str]:
    """Return the operator's argument names in order."""
    return [argument.name for argument in operator._schema.arguments]
