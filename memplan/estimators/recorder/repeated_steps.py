"""Further steps, made from the recorded ones, until the allocator is in a steady state.

Reserved memory still grows after the second step: the optimizer state made in the first one occupies parts of its
segments, so that later blocks go elsewhere. A third step need not be traced, because it repeats the second. Where
batches vary in size, the allocator caches blocks of each size: steps on a typical batch alternate with those on the
worst.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from memplan.estimators.recorder.kernel_call_blocks import proportional_workspaces
from memplan.estimators.step_trace import DrawnBatches
from memplan.estimators.temporaries.varying_workspaces import varying_workspaces
from memplan.results import Component

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from memplan.estimators.recorder.recording import Recording
    from memplan.estimators.step_trace import Timeline


_ALIKE = 0.95  # a typical batch of this share of the worst tells too little of how blocks follow
_NEARLY_SQUARE = 1.5  # power of a batch's share
_QUANTILES = 1001


def repeat_last_step(recording: Recording) -> None:
    """Append a copy of the last step, with new blocks.

    Blocks of the step before that the last step freed correspond to blocks that the last step left. Those that it did
    not leave again are not there to be freed: evaluation in CUDA graphs frees the gradients of the step before it.
    Nothing is appended where the last step left others, because no copy could free them. CUDA graphs are replayed:
    their blocks are where they were when they were recorded.
    """
    found, left = _handed_on(recording)
    successors = _paired(recording, found, left)
    if len(successors) < len(left):
        return
    begin, end = recording.step_starts[-1], len(recording.event_blocks)
    graph_streams = recording.graph_streams
    recording.step_starts.append(end)
    returns = {each for each in recording.cache_returns if begin <= each < end}
    for event in range(begin, end):
        block = recording.event_blocks[event]
        if event in returns:
            recording.return_cache()
        if recording.event_allocates[event] and recording.streams[block] not in graph_streams:
            successors[block] = recording.duplicate_block(block)
        if block not in successors:
            continue
        recording.event_blocks.append(successors[block])
        recording.event_allocates.append(recording.event_allocates[event])
        recording.event_phases.append(recording.event_phases[event])


def _handed_on(recording: Recording) -> tuple[list[int], list[int]]:
    """Return the blocks of the step before that the last step frees, and those that it leaves."""
    begin, end = recording.step_starts[-1], len(recording.event_blocks)
    made = {recording.event_blocks[each] for each in range(begin, end) if recording.event_allocates[each]}
    freed = {recording.event_blocks[each] for each in range(begin, end) if not recording.event_allocates[each]}
    return sorted(freed - made), sorted(made - freed)


def _paired(recording: Recording, found: Sequence[int], left: Sequence[int]) -> dict[int, int]:
    """Return for each block that was found the one of its kind that is left in its place, if there is one."""
    of_kinds: dict[tuple[int, int], list[int]] = defaultdict(list)
    for block in reversed(left):
        of_kinds[_kind(recording, block)].append(block)
    return {block: of_kind.pop() for block in found if (of_kind := of_kinds[_kind(recording, block)])}


def drawn_batches(
    timeline: Timeline, worst: Recording, typical: Recording, sample_sizes: Sequence[float]
) -> DrawnBatches | None:
    """Return how blocks follow the size of a batch; None where the runs do not show it, or sizes are not known.

    A block lies on the line through both batches: one that is the same for both does not depend on the batch, and the
    output of a convolution without padding shrinks a little faster than its input. One that shrinks nearly with the
    square is quadratic, as scores of attention are, with a linear part.

    Args:
        timeline: steps on the worst batch.
        worst: one of the runs behind the timeline.
        typical: a run of the same structure and micro-batch size on a typical batch.
        sample_sizes: how large samples are, in any unit.
    """
    found, left = _handed_on(worst)
    successors = _paired(worst, found, left)
    share = _share_of_inputs(typical, worst)
    largest = max(sample_sizes, default=0)
    if not len(found) == len(successors) == len(left) or not 0 < share < _ALIKE or not largest > 0:
        return None
    shares = np.clip(_block_shares(worst, typical), share**2, 1.0)
    is_square = shares < share**_NEARLY_SQUARE
    square = np.where(is_square, (1 - shares / share) / (1 - share), 0.0)
    slope = np.where(is_square, 1 - square, (1 - shares) / (1 - share))
    quantiles = np.quantile(np.array(sample_sizes, dtype=np.float64) / largest, np.linspace(0, 1, _QUANTILES))
    return DrawnBatches(
        timeline=timeline,
        handed_on=np.array([list(successors), list(successors.values())], dtype=np.int32),
        share_terms=np.stack([1 - slope - square, slope, square]),
        sample_shares=quantiles,
        workspaces=varying_workspaces(timeline.workspaces, proportional_workspaces(typical), share),
    )


def _share_of_inputs(typical: Recording, worst: Recording) -> float:
    """Return how large the typical batch is as a share of the worst's, by those of its tensors that differ."""
    pairs = zip(worst.components, typical.block_bytes, worst.block_bytes, strict=True)
    differing = [sizes for component, *sizes in pairs if component is Component.INPUTS and sizes[0] != sizes[1]]
    of_typical, of_worst = (sum(sizes) for sizes in zip(*differing, strict=True)) if differing else (1, 1)
    return of_typical / max(of_worst, 1)


def interleave_typical_steps(timeline: Timeline, worst: Recording, typical: Recording) -> Timeline:
    """Give every second step, counted back from the last but one, the block sizes of a typical batch.

    Args:
        timeline: steps on the worst batch.
        worst: one of the runs behind the timeline.
        typical: a run of the same structure and micro-batch size on a typical batch.
    """
    steps, last = timeline.steps, timeline.step_starts.size - 1
    is_typical = (steps >= 0) & ((last - steps) % 2 == 1)
    return replace(
        timeline,
        size_terms=timeline.size_terms * np.where(is_typical, _block_shares(worst, typical), 1.0),
        workspaces=timeline.workspaces.replaced_by(proportional_workspaces(typical), is_typical),
        ruled=timeline.ruled.among(~is_typical),
    )


def _block_shares(worst: Recording, typical: Recording) -> npt.NDArray[np.float64]:
    """Return what each block takes for the typical batch as a share of what it takes for the worst."""
    shares: npt.NDArray[np.float64] = np.array(typical.block_bytes) / np.maximum(worst.block_bytes, 1)
    return shares


def _kind(recording: Recording, block: int) -> tuple[int, int]:
    return recording.block_bytes[block], recording.operators[block]
