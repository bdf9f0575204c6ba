"""Which operators reduce on a card with staging memory, and what of the reduction its size depends on.

The order of dimensions is that of ``TensorIterator`` (``aten/src/ATen/TensorIterator.cpp`` of torch 2.13): reduced ones
first, by stride, and neighbours that are one range in memory are merged.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from memplan.devices.card_context import threads_per_multiprocessor
from memplan.estimators.temporaries.reductions import Reduction
from memplan.estimators.temporaries.ruled_blocks import RuledBlock

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_OUTPUTS_PER_THREAD = 4

SUMS_FOR_BIAS = "aten.convolution_backward"  # the gradient of its output, over all but channels
_SUMS = ("aten.sum", "aten.mean", "aten.nansum", "aten.prod", "aten.count_nonzero")
_VARIANCES = ("aten.var", "aten.std", "aten.var_mean", "aten.std_mean")
_EXTREMES = ("aten.amax", "aten.amin")
_PLACES = ("aten.max", "aten.min", "aten.argmax", "aten.argmin")
_CONDITIONS = ("aten.any", "aten.all")
_NORMS = ("aten.linalg_vector_norm", "aten.norm")
_OPERATORS = frozenset((*_SUMS, *_EXTREMES, *_PLACES, *_CONDITIONS, *_VARIANCES))
_WELFORD_NUMBERS = 4  # mean, sum of squares and two counts
_VALUE_AND_PLACE_BYTES = 16  # of up to eight bytes, beside an index of eight (``SharedReduceOps.h``)


@dataclass(frozen=True, slots=True)
class _Dimension:
    size: int
    stride: int  # of the input, in elements
    is_reduced: bool


def cuda_reduction(
    operator: str, args: tuple[Any, ...], result: Any, capability: tuple[int, int], multiprocessors: int
) -> RuledBlock | None:
    """Return the partial results of the reduction that an operator runs, if it keeps its input's innermost dimension.

    Args:
        operator: name without overload.
        args: its positional arguments.
        result: what it returned.
        capability: compute capability of the card.
        multiprocessors: of the card.
    """
    operands = _operands(operator, args)
    if operands is None:
        return None
    given, over = operands
    if given.layout is not torch.strided or not given.dim():
        return None
    dimensions = _merged(_ordered(given, over))
    reduced = [each for each in dimensions if each.is_reduced]
    kept = dimensions[len(reduced) :]
    if not reduced or not kept or reduced[0].stride < kept[0].stride:
        return None
    rule = Reduction(
        item_bytes=given.element_size(),
        accumulator_bytes=_accumulator_bytes(operator, given, result),
        outputs_per_thread=_outputs_per_thread(kept[0], [*reduced, *kept[1:]], int(given.storage_offset())),
        multiprocessors=multiprocessors,
        threads_per_multiprocessor=threads_per_multiprocessor(capability),
    )
    outputs, values_per_output = prod(each.size for each in kept), prod(each.size for each in reduced)
    return RuledBlock(rule=rule, place=0, lengths=(outputs, values_per_output))


def _operands(operator: str, args: tuple[Any, ...]) -> tuple[torch.Tensor, Sequence[int]] | None:
    """Return what is reduced over which dimensions."""
    if operator == SUMS_FOR_BIAS and args[-1][2]:
        return args[0], (0, *range(2, args[0].dim()))
    place = 1 if operator in _OPERATORS else 2 if operator in _NORMS else len(args)  # a norm's order comes before
    over = args[place] if place < len(args) else None
    if isinstance(over, int):
        over = (over,)
    return (args[0], over) if isinstance(over, list | tuple) else None


def _ordered(given: torch.Tensor, reduced: Sequence[int]) -> list[_Dimension]:
    """Return the dimensions in the order in which the kernel runs over them, those of one element left out."""
    which = {each % given.dim() for each in reduced} if reduced else set(range(given.dim()))
    dimensions = [
        _Dimension(size, stride, is_reduced=place in which)
        for place, (size, stride) in enumerate(zip(given.shape, given.stride(), strict=True))
        if size != 1
    ]
    # Results are contiguous: of the kept dimensions, the last given one moves the fastest there.
    kept = [each for each in reversed(dimensions) if not each.is_reduced]
    return [*sorted((each for each in dimensions if each.is_reduced), key=lambda each: each.stride), *kept]


def _merged(dimensions: Sequence[_Dimension]) -> list[_Dimension]:
    merged: list[_Dimension] = []
    for each in dimensions:
        last = merged[-1] if merged else None
        if last and last.is_reduced is each.is_reduced and last.size * last.stride == each.stride:
            merged[-1] = _Dimension(last.size * each.size, last.stride, each.is_reduced)
        else:
            merged.append(each)
    return merged


def _outputs_per_thread(innermost: _Dimension, others: Sequence[_Dimension], offset: int) -> int:
    """Return how many outputs a thread reads at once (``get_output_vec_size`` in ``Reduce.cuh``)."""
    width = _MOST_OUTPUTS_PER_THREAD if innermost.stride == 1 else 1
    while any(number % width for number in (offset, innermost.size, *(each.stride for each in others))):
        width //= 2
    return width


def _accumulator_bytes(operator: str, given: torch.Tensor, result: Any) -> int:
    """Return the size of a partial result: extremes keep the type, numbers are at least as wide as single precision."""
    if operator in _EXTREMES:
        return given.element_size()
    if operator in _PLACES:
        return _VALUE_AND_PLACE_BYTES
    if operator in _CONDITIONS:
        return torch.bool.itemsize
    made = result.element_size() if isinstance(result, torch.Tensor) else 0  # of sums of integers, and by request
    number = max(given.element_size(), made, torch.float32.itemsize)
    return number * _WELFORD_NUMBERS if operator in _VARIANCES else number
