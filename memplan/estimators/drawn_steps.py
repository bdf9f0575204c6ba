"""Steps on batches drawn at random, where samples vary in size: what PyTorch's allocator comes to hold meanwhile.

A block of one size seldom fits a request of another, so that the allocator takes ever more segments, up to several
times what the worst batch alone needs, until the card is full and cached memory is returned.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memplan.estimators.allocators.caching_allocator import replay
from memplan.estimators.figures import outcome_of
from memplan.estimators.step_trace import DRAWN_STEPS
from memplan.results import DrawnSteps, OutcomeKind

if TYPE_CHECKING:
    import numpy.typing as npt

    from memplan.estimators.allocators.allocator_config import AllocatorConfig
    from memplan.estimators.allocators.caching_allocator import AllocatorPeaks
    from memplan.estimators.step_trace import DrawnBatches

_WORST_FIRST = (OutcomeKind.DEVICE_OUT_OF_MEMORY, OutcomeKind.ALLOCATOR_RETRIES)


class AllocatorEvents(NamedTuple):
    """Block number of each event, bytes that it requests (0 where it frees its block), and blocks of other streams."""

    blocks: npt.NDArray[np.int32]
    requests_bytes: npt.NDArray[np.int64]
    side_streams: dict[int, int]

    def replayed(self, config: AllocatorConfig, *, limit_bytes: int | None = None) -> AllocatorPeaks:
        """Replay the events, under a limit if there is one."""
        return replay(
            self.blocks, self.requests_bytes, config=config, limit_bytes=limit_bytes, side_streams=self.side_streams
        )


def drawn_steps(drawn: DrawnBatches, micro_batch_size: int, config: AllocatorConfig, *, limit_bytes: int) -> DrawnSteps:
    """Replay steps on batches of samples drawn at random, three times.

    Args:
        drawn: how the blocks of a step follow the size of its batch.
        micro_batch_size: samples of a batch.
        config: settings of the caching allocator.
        limit_bytes: what the allocator may hold, for the outcome alone.
    """
    runs = [events_on_batches(drawn, micro_batch_size, each) for each in drawn.batch_shares(micro_batch_size)]
    peaks_bytes = [each.replayed(config).peak_reserved_bytes for each in runs]
    median_bytes = statistics.median_low(peaks_bytes)
    median_run = runs[peaks_bytes.index(median_bytes)]
    expandable = median_run.replayed(replace(config, expandable_segments=True))
    tight = [each for each, peak_bytes in zip(runs, peaks_bytes, strict=True) if peak_bytes > limit_bytes]
    ends = {outcome_of(each.replayed(config, limit_bytes=limit_bytes)) for each in tight}
    return DrawnSteps(
        steps=DRAWN_STEPS,
        peak_reserved_bytes=median_bytes,
        peak_reserved_expandable_bytes=expandable.peak_reserved_bytes,
        outcome=next((kind for kind in _WORST_FIRST if kind in ends), OutcomeKind.FITS),
    )


def events_on_batches(drawn: DrawnBatches, micro_batch_size: int, shares: npt.NDArray[np.float64]) -> AllocatorEvents:
    """Return the recorded steps, and copies of the last one, each with its blocks in the size of its own batch.

    Args:
        drawn: how the blocks of a step follow the size of its batch.
        micro_batch_size: samples of a batch.
        shares: size of each step's batch as a share of the worst's, at least as many as there are recorded steps.
    """
    timeline, starts = drawn.timeline, drawn.timeline.step_starts
    worst_bytes = timeline.block_bytes(micro_batch_size)
    steps = timeline.steps
    batch_shares = np.where(steps < 0, 1.0, shares[steps])
    sizes = [worst_bytes * _block_shares(drawn.share_terms, batch_shares)]
    drawn.workspaces.fill(sizes[0], np.arange(worst_bytes.size, dtype=np.int32), batch_shares, micro_batch_size)
    blocks, allocates = [timeline.event_blocks], [timeline.event_allocates]

    last_blocks, last_allocates = timeline.event_blocks[starts[-1] :], timeline.event_allocates[starts[-1] :]
    made = np.unique(last_blocks[last_allocates])
    side_streams = dict(timeline.side_streams)
    on_side_streams = [block for block in made.tolist() if block in side_streams]
    numbers = np.arange(worst_bytes.size, dtype=np.int32)  # of each block of the last step, in the copy before
    for copy, share in enumerate(shares[len(starts) :]):
        found, left = drawn.handed_on
        before = numbers[left]
        numbers[made] = worst_bytes.size + copy * made.size + np.arange(made.size)
        numbers[found] = before
        side_streams |= {int(numbers[block]): side_streams[block] for block in on_side_streams}
        blocks.append(numbers[last_blocks])
        allocates.append(last_allocates)
        sizes.append(worst_bytes[made] * _block_shares(drawn.share_terms[:, made], share))
        drawn.workspaces.fill(sizes[-1], made, np.full(made.size, share), micro_batch_size)
    block_bytes = np.rint(np.concatenate(sizes)).astype(np.int64)
    event_blocks = np.concatenate(blocks)
    kept = block_bytes[event_blocks] > 0
    requests = np.where(np.concatenate(allocates), block_bytes[event_blocks], 0)
    return AllocatorEvents(event_blocks[kept], requests[kept], side_streams)


def _block_shares(terms: npt.NDArray[np.float64], share: npt.NDArray[np.float64] | float) -> npt.NDArray[np.float64]:
    """Return what blocks take as shares of what they take for the worst batch, at the share of their own batch."""
    found: npt.NDArray[np.float64] = np.maximum(terms[0] + terms[1] * share + terms[2] * share**2, 0.0)
    return found
