"""Where more memory buys no more speed: the chosen micro-batch beside about half of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.recommend.band import Place
from memplan.recommend.choice import EQUAL_THROUGHPUT
from memplan.recommend.speeds import fastest_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.recipe import Recipe
    from memplan.recommend.band import Band
    from memplan.results import Trial

# A size between these shares of another counts as half of it.
_HALF = (0.4, 0.6)


def comparable(trials: Sequence[Trial], recipe: Recipe) -> tuple[Trial, ...]:
    """Return the runs that show speed over the micro-batch alone: all else alike, or the same global batch.

    Of each size it is the fastest run, smallest size first.

    Args:
        trials: live runs.
        recipe: what the others are compared with.
    """
    alike = [trial for trial in trials if trial.fits and _is_comparable(trial.recipe, recipe)]
    found = {trial.recipe.micro_batch_size: trial for trial in sorted(alike, key=_samples_per_s)}
    return tuple(found[size] for size in sorted(found))


def _samples_per_s(trial: Trial) -> float:
    measured = trial.outcome.measurement
    return 0.0 if measured is None else measured.samples_per_s


def _is_comparable(one: Recipe, other: Recipe) -> bool:
    at_its_size = replace(one, micro_batch_size=other.micro_batch_size, learning_rate=other.learning_rate)
    if at_its_size == other:
        return True
    holds_the_batch = other.accumulation_steps > 1 and one.global_batch_size == other.global_batch_size
    return holds_the_batch and replace(at_its_size, accumulation_steps=other.accumulation_steps) == other


def half_of(trials: Sequence[Trial], recipe: Recipe) -> Trial | None:
    """Return the run of about half a recipe's micro-batch, the nearest to it; None where there is none."""
    size = recipe.micro_batch_size
    low, high = (share * size for share in _HALF)
    halves = [each for each in comparable(trials, recipe) if low <= each.recipe.micro_batch_size <= high]
    return min(halves, key=lambda each: abs(each.recipe.micro_batch_size - size / 2), default=None)


def _double_of(trials: Sequence[Trial], recipe: Recipe) -> Trial | None:
    """Return the run of which a recipe is about half; None where there is none."""
    low, high = (recipe.micro_batch_size / share for share in reversed(_HALF))
    return next((each for each in comparable(trials, recipe) if low <= each.recipe.micro_batch_size <= high), None)


def knee_reason(chosen: Trial, trials: Sequence[Trial], band: Band) -> str | None:
    """Say what the last doubling of the micro-batch gains; None where no run shows it.

    A smaller size in the band that is as fast would have been chosen; one below the band is named with the option that
    has it chosen, because the band is what was asked for.
    """
    half = half_of(trials, chosen.recipe)
    speed_now, other = fastest_run(chosen.recipe, (chosen, *trials)), half.outcome.measurement if half else None
    if half is None or speed_now is None or other is None:
        return _double_reason(chosen, trials)
    gain = speed_now / other.samples_per_s - 1
    size = half.recipe.micro_batch_size
    speed = f"micro-batch {size} runs {other.samples_per_s:.1f} samples/s"
    if gain > EQUAL_THROUGHPUT:
        return f"Half as large, {speed}: the larger one gains {gain:.0%}."
    share = other.peak_device_bytes / band.total_bytes
    standing = "as fast" if gain > -EQUAL_THROUGHPUT else "faster"
    said = f"Half as large is {standing}: {speed} with {share:.0%} of the device"
    if band.place(other.peak_device_bytes) is not Place.BELOW:
        return f"{said}."
    return f"{said}, below the band; --min-util {_rounded_down(share):g} recommends it."


def _double_reason(chosen: Trial, trials: Sequence[Trial]) -> str | None:
    """Say that the size that is twice as large is no faster, where the chosen one is its half."""
    double = _double_of(trials, chosen.recipe)
    speed_now, other = fastest_run(chosen.recipe, (chosen, *trials)), double.outcome.measurement if double else None
    if double is None or speed_now is None or other is None:
        return None
    if other.samples_per_s > speed_now * (1 + EQUAL_THROUGHPUT):
        return None
    larger = f"micro-batch {double.recipe.micro_batch_size} runs {other.samples_per_s:.1f} samples/s"
    return f"Twice as large is no faster: {larger}."


def _rounded_down(share: float) -> float:
    return int(share * 20) / 20
