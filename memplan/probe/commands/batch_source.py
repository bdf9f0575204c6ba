"""Which data loader a command trains on, by what was seen of each step, and what that says of its steps. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.probe.commands.events import LoaderUse, StepEnded

_MOST_AHEAD = 1  # batches that frameworks fetch before they are trained on; beyond, as by threads, nothing is told


def loader_trained_on(steps: Sequence[StepEnded]) -> int | None:
    """Return the number of the loader that most steps of a process have a batch of; None for none, or for several.

    It is half of the steps at least, where batches are fetched ahead. Others are evaluated on between some steps.
    """
    counts = Counter(use.number for step in steps for use in step.loaders if use.fetched)
    ranked = counts.most_common(2)
    if not ranked or 2 * ranked[0][1] < len(steps):
        return None
    is_alone = len(ranked) == 1 or ranked[1][1] < ranked[0][1]
    return ranked[0][0] if is_alone else None


def samples_short_of(steps: Sequence[StepEnded]) -> tuple[int, int] | None:
    """Return the samples of a full batch and those that the training has, where these are fewer; else None."""
    use = _known_use(steps)
    if use is None or use.asked is None or use.available is None or use.available >= use.asked:
        return None
    return use.asked, use.available


def samples_of_split(steps: Sequence[StepEnded], *, micro_batch_size: int, passes: int) -> int | None:
    """Return the samples of a batch where the script splits what it was told into so many passes; else None.

    Loaders of batches that were put together before say that theirs have one sample: these would be far too few.

    Args:
        steps: those of a process.
        micro_batch_size: what the script was told.
        passes: backward passes of a usual step.
    """
    use = _known_use(steps)
    if use is None or use.asked is None or use.asked >= micro_batch_size:
        return None
    return use.asked if micro_batch_size - use.asked < use.asked * passes <= micro_batch_size else None


def batches_of_step(steps: Sequence[StepEnded]) -> int | None:
    """Return how many batches each step fetched, the first aside; None where that differs, or is not known."""
    use = _known_use(steps)
    if use is None or use.asked is None:
        return None
    counts = {0 if each is None else each.fetched for each in _uses(steps, use.number)[1:]}
    return counts.pop() or None if len(counts) == 1 else None


def partial_steps(steps: Sequence[StepEnded]) -> list[bool] | None:
    """Return which steps train on a last batch of fewer samples; None where that is not known."""
    use = _known_use(steps)
    if use is None or use.asked is None or use.available is None or use.drops_last is None:
        return None
    trained = _trained_by_epoch(steps, _uses(steps, use.number))
    if trained is None:
        return None
    ends_partially = not use.drops_last and use.available > use.asked and use.available % use.asked != 0
    return [ends_partially and count == use.batches for count in trained]


def durations_s(steps: Sequence[StepEnded]) -> list[float]:
    """Return how long each step took: one that begins an epoch, since its first batch was there.

    What comes before that, such as an evaluation and the start of workers, is none of the step's.
    """
    uses = _uses(steps, loader_trained_on(steps))
    if _trained_by_epoch(steps, uses) is None:
        return [step.duration_s or 0.0 for step in steps]
    return [_duration_s(step, use) for step, use in zip(steps, uses, strict=True)]


def paused_steps(steps: Sequence[StepEnded]) -> list[bool]:
    """Return which steps come after an evaluation amid an epoch, or amid themselves.

    Another loader began, and no batch of an epoch of the training's is known to be their first.
    """
    number = loader_trained_on(steps)
    return [
        number is not None
        and any(use.begun and use.number != number for use in step.loaders)
        and not any(use.since_first_s is not None and use.number == number for use in step.loaders)
        for step in steps
    ]


def _duration_s(step: StepEnded, use: LoaderUse | None) -> float:
    whole_s = step.duration_s or 0.0
    return whole_s if use is None or use.since_first_s is None else min(whole_s, use.since_first_s)


def _known_use(steps: Sequence[StepEnded]) -> LoaderUse | None:
    """Return a use of the loader that is trained on; None where it makes more batches than it says."""
    number = loader_trained_on(steps)
    if number is None:
        return None
    uses = _uses(steps, number)
    known = next(each for each in uses if each is not None)
    return None if known.batches is None or max(_fetched_by_epoch(uses)) > known.batches else known


def _trained_by_epoch(steps: Sequence[StepEnded], uses: Sequence[LoaderUse | None]) -> list[int] | None:
    """Return how many batches of an epoch were trained on by the end of each step, one for each backward pass.

    None where they are not trained on as they are fetched, or one step later.
    """
    trained = _summed_by_epoch([step.passes for step in steps], uses)
    ahead = (fetched - count for fetched, count in zip(_fetched_by_epoch(uses), trained, strict=True))
    return trained if all(0 <= each <= _MOST_AHEAD for each in ahead) else None


def _fetched_by_epoch(uses: Sequence[LoaderUse | None]) -> list[int]:
    """Return how many batches of an epoch were fetched by the end of each step."""
    return _summed_by_epoch([0 if use is None else use.fetched for use in uses], uses)


def _summed_by_epoch(counts: Sequence[int], uses: Sequence[LoaderUse | None]) -> list[int]:
    total, sums = 0, []
    for count, use in zip(counts, uses, strict=True):
        total = count if use is not None and use.begun else total + count
        sums.append(total)
    return sums


def _uses(steps: Sequence[StepEnded], number: int | None) -> list[LoaderUse | None]:
    return [next((use for use in step.loaders if use.number == number), None) for step in steps]
