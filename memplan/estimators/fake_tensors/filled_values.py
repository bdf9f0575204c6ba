"""Values that an operator fills a tensor with, whatever the tensor holds whose form it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

if TYPE_CHECKING:
    from torch._ops import OpOverload

_ATEN = torch.ops.aten
_FILLED = {_ATEN.zeros_like: 0, _ATEN.new_zeros: 0, _ATEN.ones_like: 1, _ATEN.new_ones: 1}
_POSITION_OF_VALUE = {_ATEN.full_like: 1, _ATEN.new_full: 2}
_LARGEST_WHOLE = 1 << 20  # elements: 8 MiB of int64
_LARGEST_REAL = 1 << 18  # elements: optimizers make zeros in the form of every parameter


def filled_value(operator: OpOverload, args: tuple[Any, ...], result: torch.Tensor) -> torch.Tensor | None:
    """Return the value of a small result that an operator fills with a number; None if it does not, or is larger.

    The gradient of a loss, a single one, is none: gradients and norms that follow from it are for optimizers to read.

    Args:
        operator: the operator.
        args: its positional arguments.
        result: its result, a fake tensor.
    """
    filled = _filled_with(operator, args)
    if filled is None:
        return None
    is_real = result.is_floating_point() or result.is_complex()
    is_gradient_of_loss = is_real and not result.dim()
    if is_gradient_of_loss or result.numel() > (_LARGEST_REAL if is_real else _LARGEST_WHOLE):
        return None
    with unset_fake_temporarily():
        return torch.full(result.shape, filled, dtype=result.dtype)


def _filled_with(operator: OpOverload, args: tuple[Any, ...]) -> bool | float | None:
    position = _POSITION_OF_VALUE.get(operator.overloadpacket)
    if position is None:
        return _FILLED.get(operator.overloadpacket)
    value = args[position] if len(args) > position else None
    return value if isinstance(value, int | float) else None
