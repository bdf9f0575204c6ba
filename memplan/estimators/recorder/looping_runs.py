"""Runs of a step that loops over the samples of a batch, as where these come in a list: one timeline for any size.

Which rounds a further sample adds, and what these allocate, follows from two runs; a third proves it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from memplan.estimators.recorder.sample_rounds import consecutive_frees, loops_between, with_like_frees_together
from memplan.estimators.recorder.size_fits import fit_timeline, fits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memplan.estimators.recorder.recording import Recording
    from memplan.estimators.sample_loops import SampleLoops
    from memplan.estimators.step_trace import Timeline


def looping_timeline(recordings: Sequence[Recording]) -> Timeline | None:
    """Return one timeline of runs that differ by rounds of loops over samples; None where they differ otherwise.

    Args:
        recordings: at least three, of which two differ by one sample and another has more.
    """
    runs = [with_like_frees_together(each) for each in sorted(recordings, key=lambda each: each.micro_batch_size)]
    for first in range(len(runs) - 2):
        small, large, *others = runs[first:]
        if large.micro_batch_size - small.micro_batch_size == 1:
            timeline = _timeline_by(small, large, others)
            if timeline is not None:
                return timeline
    return None


def _timeline_by(small: Recording, large: Recording, others: Sequence[Recording]) -> Timeline | None:
    """Return a timeline by two runs that differ by a round; None where the other runs disprove it."""
    for candidates in loops_between(small, large):
        for loops, ordered in candidates:
            fitted = [_in_structure_of(ordered, small, loops), ordered]
            line = replace(fit_timeline(fitted), loops=loops)
            proofs = [_proof(line, each) for each in others]
            if all(proofs):
                timeline = _fitted(line, fitted, [each for each in proofs if each is not None])
                if timeline is not None:
                    return timeline
                break  # rounds of another sample are as large
    return None


def _fitted(line: Timeline, fitted: Sequence[Recording], proofs: Sequence[Recording]) -> Timeline | None:
    """Return a timeline with its blocks on the line through two runs, or on a parabola; None where some are on none."""
    if _all_fit(line, proofs):
        return line
    third, *others = proofs
    parabola = replace(fit_timeline([*fitted, _without_further_rounds(third, fitted[-1])]), loops=line.loops)
    return parabola if others and _all_fit(parabola, others) else None


def _all_fit(timeline: Timeline, runs: Iterable[Recording]) -> bool:
    return all(fits(timeline.unrolled(each.micro_batch_size), each) for each in runs)


def _in_structure_of(large: Recording, small: Recording, loops: SampleLoops) -> Recording:
    """Return the smaller run as if it had allocated the larger one's blocks, those of the further sample as large."""
    calls, sizes_bytes = list(large.kernel_calls), list(large.block_bytes)
    shared = _made(large, np.flatnonzero(loops.event_loops == 0).tolist())
    for block, of_small in zip(shared, _made(small, range(len(small.event_blocks))), strict=True):
        calls[block], sizes_bytes[block] = small.kernel_calls[of_small], small.block_bytes[of_small]
    return replace(large, micro_batch_size=small.micro_batch_size, kernel_calls=calls, block_bytes=sizes_bytes)


def _made(recording: Recording, events: Iterable[int]) -> Iterator[int]:
    """Yield the blocks that some events allocate, in order."""
    return (recording.event_blocks[each] for each in events if recording.event_allocates[each])


def _without_further_rounds(run: Recording, large: Recording) -> Recording:
    """Return a run of more samples, with blocks numbered as in the unrolled timeline, as if it had one round alone."""
    count = len(large.block_bytes)
    return replace(
        large,
        micro_batch_size=run.micro_batch_size,
        block_bytes=run.block_bytes[:count],
        kernel_calls=run.kernel_calls[:count],
    )


def _proof(timeline: Timeline, recording: Recording) -> Recording | None:
    """Return a run of more samples, its blocks numbered as in the unrolled timeline; None where events differ."""
    unrolled = timeline.unrolled(recording.micro_batch_size)
    made = unrolled.event_blocks[unrolled.event_allocates].tolist()
    own = list(_made(recording, range(len(recording.event_blocks))))
    if len(made) != len(own) or unrolled.event_blocks.size != len(recording.event_blocks):
        return None
    renumbered = _renumbered(recording, dict(zip(own, made, strict=True)))
    return renumbered if _has_events_of(unrolled, renumbered) else None


def _renumbered(recording: Recording, numbers: Mapping[int, int]) -> Recording:
    """Return a run whose blocks have other numbers."""
    order = sorted(numbers, key=numbers.__getitem__)
    return replace(
        recording,
        event_blocks=[numbers[block] for block in recording.event_blocks],
        block_bytes=[recording.block_bytes[block] for block in order],
        components=[recording.components[block] for block in order],
        modules=[recording.modules[block] for block in order],
        operators=[recording.operators[block] for block in order],
        streams=[recording.streams[block] for block in order],
        kernel_calls=[recording.kernel_calls[block] for block in order],
    )


def _has_events_of(timeline: Timeline, run: Recording) -> bool:
    """Whether a timeline has the events of a run, but for the order of consecutive frees."""
    for found, recorded in (
        (timeline.event_allocates, run.event_allocates),
        (timeline.event_phases, run.event_phases),
        (timeline.step_starts, run.step_starts),
        (timeline.cache_returns, run.all_returns),
    ):
        if found.tolist() != recorded:
            return False
    ours, theirs = timeline.event_blocks.tolist(), list(run.event_blocks)
    for start, stop in consecutive_frees(run):
        ours[start:stop], theirs[start:stop] = sorted(ours[start:stop]), sorted(theirs[start:stop])
    return bool(ours == theirs)
