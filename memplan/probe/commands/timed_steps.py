"""Which steps of a command are timed, and how long each took. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from memplan.probe.commands.batch_source import durations_s, partial_steps, paused_steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.probe.commands.events import StepEnded

_FAR_LONGER, _FEWEST_OF_TWO_LENGTHS, _TICK_S = 1.5, 4, 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    """The steps that are timed.

    Args:
        durations_s: of each, in order; none where too few steps were taken.
        passes: backward passes of each.
        leaves_out_partial: whether steps of a last batch of fewer samples were left out.
    """

    durations_s: tuple[float, ...]
    passes: int
    leaves_out_partial: bool


NOTHING_TIMED = StepTiming(durations_s=(), passes=1, leaves_out_partial=False)


def time_steps(steps: Sequence[StepEnded], *, warmup: int) -> StepTiming:
    """Time the steps of one process that say how fast a full micro-batch is trained.

    Left out where others remain: steps that the gradient scaler skipped, last batches of fewer samples, steps behind an
    evaluation, and steps of fewer backward passes than usual, as of an epoch's rest under accumulation. A step that
    begins an epoch is timed from its first batch on.

    Args:
        steps: all of them, at least two.
        warmup: how many are not timed.
    """
    lengths = durations_s(steps)
    kept = _unless_all(range(warmup, len(steps)), [bool(step.skipped) for step in steps])
    partial = partial_steps(steps)
    if partial is None:
        partial = _much_shorter(kept, lengths)
    full = _unless_all(kept, partial)
    within = _unless_all(full, paused_steps(steps))
    passes = usual_passes([steps[place].passes for place in within])
    usual = [place for place in within if steps[place].passes == passes] if steps[-1].optimizers <= 1 else within
    return StepTiming(
        durations_s=tuple(lengths[place] for place in usual),
        passes=max(passes, 1),
        leaves_out_partial=len(full) < len(kept),
    )


def usual_passes(passes: Sequence[int]) -> int:
    """Return the number of passes that most steps make, of several the largest."""
    counts = Counter(passes)
    return max(counts, key=lambda each: (counts[each], each))


def _unless_all(places: Sequence[int], are_left_out: Sequence[bool]) -> list[int]:
    return [place for place in places if not are_left_out[place]] or list(places)


def _much_shorter(places: Sequence[int], lengths: Sequence[float]) -> list[bool]:
    """Tell last batches of an epoch, where no data loader does: shorter by far than others, and never two in a row."""
    nothing = [False] * len(lengths)
    timed = sorted(lengths[place] for place in places)
    if len(timed) < _FEWEST_OF_TWO_LENGTHS:
        return nothing
    longest_short, shortest_long = max(pairwise(timed), key=lambda pair: pair[1] / max(pair[0], _TICK_S))
    are_short = [lengths[place] <= longest_short for place in places]
    take_turns = are_short.count(True) > 1 and not any(one and next_one for one, next_one in pairwise(are_short))
    if shortest_long < _FAR_LONGER * longest_short or not take_turns:
        return nothing
    return [length <= longest_short for length in lengths]
