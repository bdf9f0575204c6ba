"""More steps than were run: the last one again, until memory has settled, and of batches that differ in size.

The allocator is not settled after the second step: what the optimizer's state took from the segments of the first one
is missing there, and what replaces it lies elsewhere. A third step costs nothing to trace, because it makes the blocks
of the second once more. Where batches vary in size, the allocator keeps room for the blocks of each size: steps on a
typical batch are put between those on the worst.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from memplan.estimators.convolutions import Workspaces

if TYPE_CHECKING:
    import numpy.typing as npt

    from memplan.estimators.recorder.recording import Recording
    from memplan.estimators.step_trace import Timeline


def repeat_last_step(recording: Recording) -> None:
    """Add the last step's events once more, with blocks of their own.

    What the last step gave back of the one before it, the added step gives back of the last. Nothing is added where
    that is not known, because the last step did not leave behind what it had found.
    """
    begin, end = recording.step_starts[-1], len(recording.event_blocks)
    made = {recording.event_blocks[each] for each in range(begin, end) if recording.event_allocates[each]}
    freed = {recording.event_blocks[each] for each in range(begin, end) if not recording.event_allocates[each]}
    found, left = sorted(freed - made), sorted(made - freed)
    if [_kind(recording, block) for block in found] != [_kind(recording, block) for block in left]:
        return
    successors = dict(zip(found, left, strict=True))
    recording.step_starts.append(end)
    for event in range(begin, end):
        block = recording.event_blocks[event]
        if recording.event_allocates[event]:
            successors[block] = recording.duplicate_block(block)
        recording.event_blocks.append(successors[block])
        recording.event_allocates.append(recording.event_allocates[event])
        recording.event_phases.append(recording.event_phases[event])


def interleave_typical_steps(timeline: Timeline, worst: Recording, typical: Recording) -> Timeline:
    """Give every second step, up to the last but one, the sizes of a typical batch.

    Args:
        timeline: of steps on the worst batch.
        worst: one of the runs that it is made of.
        typical: a run of the same structure and micro-batch size, on a typical batch.
    """
    last = len(worst.step_starts) - 1
    is_typical = (last - steps_of_blocks(worst)) % 2 == 1
    of_rules = None if timeline.workspaces is None else Workspaces()
    shares = np.array(typical.block_bytes) / np.maximum(worst.block_bytes, 1)
    return replace(timeline, size_terms=timeline.size_terms * np.where(is_typical, shares, 1.0), workspaces=of_rules)


def steps_of_blocks(recording: Recording) -> npt.NDArray[np.int64]:
    """Return the step that makes each block; what is there before the first counts towards the last."""
    allocations = np.flatnonzero(recording.event_allocates)
    steps = np.full(len(recording.block_bytes), len(recording.step_starts) - 1)
    blocks = np.array(recording.event_blocks)[allocations]
    steps[blocks] = np.searchsorted(recording.step_starts, allocations, side="right") - 1
    steps[steps < 0] = len(recording.step_starts) - 1
    return steps


def _kind(recording: Recording, block: int) -> tuple[int, int]:
    return recording.block_bytes[block], recording.operators[block]
