"""Temporaries of convolutions, by rules and for timings, at any micro-batch size, from calls recorded at a few."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from memplan.estimators.temporaries.convolutions import Convolution, GrowingConvolution, Workspaces
from memplan.estimators.temporaries.ruled_blocks import GrowingRuledBlock, RuledBlock, RuledBlocks
from memplan.estimators.temporaries.timed_copies import TimedCopies, TimedCopy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from memplan.estimators.recorder.recording import Recording

Call = TypeVar("Call", Convolution, RuledBlock)
Growing = TypeVar("Growing", GrowingConvolution, GrowingRuledBlock)
_Blocks = list[tuple[int, int]]  # block number, and index of its call among the different ones


def workspaces_as_traced(recording: Recording) -> Workspaces:
    """Return the convolution workspaces of a run of which only the traced size is to be known."""
    return Workspaces(has_others=_workspace_count(recording) > 0)


def growing_workspaces(recordings: Sequence[Recording]) -> Workspaces:
    """Return the convolution workspaces of the runs, for convolutions whose sample count is linear in the micro-batch.

    Args:
        recordings: runs with the same blocks at different micro-batch sizes; a single run gives constants.
    """
    return _fitted_workspaces(recordings, _growing_convolution)


def proportional_workspaces(recording: Recording) -> Workspaces:
    """Return the convolution workspaces of a run; convolutions of more samples are in proportion, and otherwise alike.

    Args:
        recording: a run whose samples differ in size from those of other runs.
    """
    return _fitted_workspaces([recording], _proportional_convolution)


def _fitted_workspaces(
    recordings: Sequence[Recording], fit: Callable[[Sequence[Convolution], Sequence[int]], GrowingConvolution]
) -> Workspaces:
    numbers, found = _numbered(_blocks_of(recordings, Convolution), fit)
    if not found:
        return workspaces_as_traced(recordings[0])
    blocks, of_blocks = _columns(found)
    has_others = _workspace_count(recordings[0]) > len(found)
    return Workspaces(blocks=blocks, numbers=of_blocks, convolutions=numbers, has_others=has_others)


def growing_ruled_blocks(recordings: Sequence[Recording]) -> RuledBlocks:
    """Return the blocks of the runs that follow from rules, where the lengths are linear in the micro-batch.

    Args:
        recordings: runs with the same blocks at different micro-batch sizes; a single run gives constants.
    """
    different, found = _numbered(_blocks_of(recordings, RuledBlock), _growing_rule)
    if not found:
        return RuledBlocks()
    blocks, numbers = _columns(found)
    return RuledBlocks(blocks=blocks, numbers=numbers, different=different)


def timed_copies(recording: Recording) -> TimedCopies:
    """Return the blocks of a run that are copies of tensors while a kernel is timed."""
    calls = enumerate(recording.kernel_calls)
    found = sorted((each.timing, block, each.place) for block, each in calls if isinstance(each, TimedCopy))
    if not found:
        return TimedCopies()
    timings, blocks, places = np.array(found, dtype=np.int32).T
    return TimedCopies(blocks=blocks, timings=timings, places=places)


def _workspace_count(recording: Recording) -> int:
    return sum(isinstance(each, Convolution) for each in recording.kernel_calls)


def _blocks_of(
    recordings: Sequence[Recording], kind: type[Call]
) -> Iterator[tuple[int, Sequence[int], Sequence[Call]]]:
    """Yield block number, sizes and calls of the blocks that hold temporaries of such calls in every run."""
    sizes = [each.micro_batch_size for each in recordings]
    for block, calls in enumerate(zip(*(each.kernel_calls for each in recordings), strict=True)):
        of_kind = [each for each in calls if isinstance(each, kind)]
        if len(of_kind) == len(sizes):
            yield block, sizes, of_kind


def _numbered(
    blocks: Iterator[tuple[int, Sequence[int], Sequence[Call]]],
    fit: Callable[[Sequence[Call], Sequence[int]], Growing],
) -> tuple[tuple[Growing, ...], _Blocks]:
    """Return the different fits on which all runs lie, and which of them each such block follows."""
    numbers: dict[Growing, int] = {}
    found: _Blocks = []
    for block, sizes, calls in blocks:
        growing = fit(calls, sizes)
        if all(growing.at(size) == each for size, each in zip(sizes, calls, strict=True)):
            found.append((block, numbers.setdefault(growing, len(numbers))))
    return tuple(numbers), found


def _columns(found: _Blocks) -> npt.NDArray[np.int32]:
    return np.array(found, dtype=np.int32).T


def _growing_convolution(calls: Sequence[Convolution], sizes: Sequence[int]) -> GrowingConvolution:
    """Return one block's convolution as a function of the micro-batch, by its first two runs."""
    is_in_channels = len({each.input_shape[1] for each in calls}) > 1
    at_zero, per_item = _line([each.input_shape[1] if is_in_channels else each.samples for each in calls], sizes)
    return GrowingConvolution(
        convolution=calls[0].with_channels(0) if is_in_channels else calls[0].with_samples(0),
        samples_at_zero=at_zero,
        samples_per_item=per_item,
        is_in_channels=is_in_channels,
    )


def _proportional_convolution(calls: Sequence[Convolution], sizes: Sequence[int]) -> GrowingConvolution:
    per_item, others = divmod(calls[0].samples, sizes[0])
    return GrowingConvolution(convolution=calls[0].with_samples(0), samples_at_zero=others, samples_per_item=per_item)


def _growing_rule(calls: Sequence[RuledBlock], sizes: Sequence[int]) -> GrowingRuledBlock:
    lines = [_line(lengths, sizes) for lengths in zip(*(each.lengths for each in calls), strict=True)]
    return GrowingRuledBlock(
        block=replace(calls[0], lengths=tuple(at_zero for at_zero, _ in lines)),
        per_item=tuple(rise for _, rise in lines),
    )


def _line(lengths: Sequence[int], sizes: Sequence[int]) -> tuple[int, int]:
    """Return value at zero and slope of the line through the first two runs; a single one is constant."""
    slope = 0 if len(lengths) == 1 else (lengths[1] - lengths[0]) // (sizes[1] - sizes[0])
    return lengths[0] - slope * sizes[0], slope
