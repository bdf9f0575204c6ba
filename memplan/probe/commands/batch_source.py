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


def partial_steps(steps: Sequence[StepEnded]) -> list[bool] | None:
    """Return which steps train on a last batch of fewer samples; None where that is not known."""
    use = _known_use(steps)
    if use is None or use.asked is None or use.available is None or use.drops_last is None:
        return None
    trained = _trained_in_epoch(steps, use.number)
    if trained is None:
        return None
    ends_partially = not use.drops_last and use.available > use.asked and use.available % use.asked != 0
    return [ends_partially and count == use.batches for count in trained]


def durations_s(steps: Sequence[StepEnded]) -> list[float]:
    """Return how long each step took: one that begins an epoch, since its first batch was there.

    What comes before that, such as an evaluation and the start of workers, is none of the step's.
    """
    number = loader_trained_on(steps)
    if number is None or _trained_in_epoch(steps, number) is None:
        return [step.duration_s or 0.0 for step in steps]
    return [_duration_s(step, use) for step, use in zip(steps, _uses(steps, number), strict=True)]


def _trained_in_epoch(steps: Sequence[StepEnded], number: int) -> list[int] | None:
    """Return how many batches of an epoch were trained on by the end of each step, one for each backward pass.

    None where they are not trained on as they are fetched, or one step later.
    """
    trained = fetched = 0
    found = []
    for step, use in zip(steps, _uses(steps, number), strict=True):
        if use is not None and use.begun:
            trained = fetched = 0
        trained += step.passes
        fetched += 0 if use is None else use.fetched
        if not 0 <= fetched - trained <= _MOST_AHEAD:
            return None
        found.append(trained)
    return found


def paused_steps(steps: Sequence[StepEnded]) -> list[bool]:
    """Return which steps come after an evaluation amid an epoch: another loader began, and the training's did not."""
    number = loader_trained_on(steps)
    return [
        number is not None
        and any(use.begun and use.number != number for use in step.loaders)
        and not any(use.begun and use.number == number for use in step.loaders)
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
    fetched = 0
    for each in uses:
        fetched = 0 if each is not None and each.begun else fetched
        fetched += 0 if each is None else each.fetched
        if known.batches is None or fetched > known.batches:
            return None
    return known


def _uses(steps: Sequence[StepEnded], number: int) -> list[LoaderUse | None]:
    return [next((use for use in step.loaders if use.number == number), None) for step in steps]
