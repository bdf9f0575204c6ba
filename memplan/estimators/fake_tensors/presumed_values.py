"""Presumed values where a training loop reads unknown ones: numbers are finite, and one.

Training loops read a loss to log it or to stop if it is not finite, and optimizers read norms. Neither changes what is
allocated. What a module reads in its forward pass may, and is not presumed here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from memplan.user_places import place_of_call

if TYPE_CHECKING:
    from torch._ops import OpOverload

_NUMBER = 1
READ = torch.ops.aten._local_scalar_dense.default  # noqa: SLF001 - what .item() and float() call
_EQUAL = torch.ops.aten.equal.default
_NEVER = (torch.ops.aten.isnan.default, torch.ops.aten.isinf.default)
_COMPARISONS = {  # operator -> its result for equal operands; isfinite is composed of these
    torch.ops.aten.eq.Tensor: True,
    torch.ops.aten.ne.Tensor: False,
    torch.ops.aten.eq.Scalar: True,
    torch.ops.aten.ne.Scalar: False,
}


def presumed_truth(operator: OpOverload, args: tuple[Any, ...]) -> bool | None:
    """Return the operator's result if it is the same for every finite number, else None."""
    if operator in _NEVER:
        return False
    of_equals = _COMPARISONS.get(operator)
    if of_equals is None:
        return None
    if args[0] is args[1]:  # only NaN differs from itself
        return of_equals
    return not of_equals if isinstance(args[1], float) and math.isinf(args[1]) else None


def reads_condition(operator: OpOverload, args: tuple[Any, ...]) -> bool:
    """Whether the operator reads a truth value, or compares all values, by which Python code takes a branch."""
    return operator is _EQUAL or (operator is READ and args[0].dtype is torch.bool)


def differ_in_shape(operator: OpOverload, args: tuple[Any, ...]) -> bool:
    """Whether the operator compares all values of two tensors that cannot be equal."""
    return operator is _EQUAL and args[0].shape != args[1].shape


class PresumedReads:
    """Presumes unknown numbers that are read outside the model's modules, and records where that was."""

    def __init__(self) -> None:
        self._places: dict[str, None] = {}

    def can_answer(self, operator: OpOverload, args: tuple[Any, ...]) -> bool:
        """Whether the operator reads a number; a truth value would decide a branch."""
        return operator is READ and args[0].dtype is not torch.bool

    def answer(self, scalar: torch.Tensor) -> float:
        """Return the presumed value of a scalar."""
        self._places.setdefault(place_of_call() or "the optimizer")
        return float(_NUMBER) if scalar.is_floating_point() else _NUMBER

    @property
    def notes(self) -> tuple[str, ...]:
        """Say where values were read, in one phrase."""
        if not self._places:
            return ()
        return (f"values that are read outside the model ({', '.join(self._places)}) are taken as {_NUMBER}",)
