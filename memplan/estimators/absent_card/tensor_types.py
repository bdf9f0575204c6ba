"""Stand-ins for ``torch.cuda.FloatTensor`` and its kin, the types of tensors of a card before there were dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_NAMES = ("Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool")


class _OfCard(type):
    """Makes tensors where the traced ones are, and is apart from the type of the CPU, as for a ``Union`` of both."""

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        return vars(cls)["on_cpu"](*arguments, **options)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.Tensor) and instance.dtype is vars(cls)["dtype"]


def tensor_types() -> dict[str, _OfCard]:
    """Return the stand-in of each type by its name in ``torch.cuda``."""
    return {f"{name}Tensor": _of_card(getattr(torch, f"{name}Tensor")) for name in _NAMES}


def _of_card(on_cpu: Any) -> _OfCard:
    name = f"torch.{on_cpu.__name__}"  # by which ``Tensor.type`` looks up what to convert to
    values = {"on_cpu": on_cpu, "dtype": on_cpu.dtype, "layout": on_cpu.layout, "is_cuda": True, "is_sparse": False}
    return _OfCard(name, (), {**values, "__module__": "torch.cuda"})


def setting_default(set_default: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return ``torch.set_default_tensor_type`` for stand-ins and their names, too."""

    def set_default_tensor_type(wanted: Any) -> None:
        kind = getattr(torch.cuda, wanted.removeprefix("torch.cuda."), wanted) if isinstance(wanted, str) else wanted
        set_default(vars(kind)["on_cpu"] if isinstance(kind, _OfCard) else wanted)

    return set_default_tensor_type
