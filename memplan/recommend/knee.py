"""Where more memory buys no more speed: the chosen micro-batch beside a smaller one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.recommend.band import Place
from memplan.recommend.choice import EQUAL_THROUGHPUT, TENFOLD
from memplan.recommend.speeds import fastest_run
from memplan.units import format_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.recipe import Recipe
    from memplan.recommend.band import Band
    from memplan.results import Trial

# A size between these shares of another counts as half of it.
_HALF = (0.4, 0.6)
_ABOUT = 0.05  # and is called so up to here
# A size is clearly smaller than another up to this share of it.
_CLEARLY_SMALLER = 0.8


def comparable(trials: Sequence[Trial], recipe: Recipe) -> tuple[Trial, ...]:
    """Return the runs that show speed over the micro-batch alone: all else alike, or the same global batch.

    Of each size it is the fastest run, smallest size first.

    Args:
        trials: live runs.
        recipe: what the others are compared with.
    """
    alike = [trial for trial in trials if trial.fits and _is_comparable(trial.recipe, recipe)]
    slowest_first = sorted(alike, key=lambda trial: trial.samples_per_s or 0.0)
    found = {trial.recipe.micro_batch_size: trial for trial in slowest_first}
    return tuple(found[size] for size in sorted(found))


def _is_comparable(one: Recipe, other: Recipe) -> bool:
    at_its_size = replace(one, micro_batch_size=other.micro_batch_size, learning_rate=other.learning_rate)
    if at_its_size == other:
        return True
    holds_the_batch = other.accumulation_steps > 1 and one.global_batch_size == other.global_batch_size
    return holds_the_batch and replace(at_its_size, accumulation_steps=other.accumulation_steps) == other


def smaller_in_band(
    recipe: Recipe, trials: Sequence[Trial], sizes: Sequence[int], smallest_inside: int | None
) -> int | None:
    """Return the smaller micro-batch to run beside a chosen one, because the band holds it and it may be as fast.

    It is half of the chosen one, or the smallest in the band where half lies below. None where the band holds nothing
    clearly smaller, or a run of about half is there.

    Args:
        recipe: what was chosen.
        trials: live runs.
        sizes: allowed micro-batches, rising.
        smallest_inside: the smallest of them that is expected in the band; None where none is.
    """
    if smallest_inside is None or smallest_inside > recipe.micro_batch_size * _CLEARLY_SMALLER:
        return None
    half, known = _half_size(recipe, sizes), half_of(trials, recipe)
    if half is None or half < smallest_inside:
        return smallest_inside
    return half if known is None or known.recipe.micro_batch_size < smallest_inside else None


def missing_half(recipe: Recipe, trials: Sequence[Trial], sizes: Sequence[int]) -> int | None:
    """Return half of a recipe's micro-batch; None where a run of about half is there, or no such size is allowed."""
    return _half_size(recipe, sizes) if half_of(trials, recipe) is None else None


def _half_size(recipe: Recipe, sizes: Sequence[int]) -> int | None:
    return max((size for size in sizes if 2 * size <= recipe.micro_batch_size), default=None)


def half_of(trials: Sequence[Trial], recipe: Recipe) -> Trial | None:
    """Return the run of about half a recipe's micro-batch, the nearest to it; None where there is none."""
    halves = _between(_HALF, trials, recipe)
    return min(halves, key=lambda each: abs(each.recipe.micro_batch_size - recipe.micro_batch_size / 2), default=None)


def _between(shares: tuple[float, float], trials: Sequence[Trial], recipe: Recipe) -> list[Trial]:
    """Comparable runs whose micro-batch lies between two shares of a recipe's, smallest first."""
    low, high = (share * recipe.micro_batch_size for share in shares)
    return [each for each in comparable(trials, recipe) if low <= each.recipe.micro_batch_size <= high]


def knee_reason(chosen: Trial, trials: Sequence[Trial], band: Band) -> str | None:
    """Say what the chosen micro-batch gains over a smaller one, or loses to a larger one; None where no run shows it.

    A smaller size in the band that is as fast would have been chosen; one below the band, also a larger one where the
    peak does not follow the size, is named with the option that has it chosen, because the band is what was asked for.
    """
    speed_now = fastest_run(chosen.recipe, (chosen, *trials))
    if speed_now is None:
        return None
    faster = _fastest_smaller(chosen.recipe, trials, speed_now)
    if faster is not None:
        return _beside_other("A smaller size", faster, speed_now, band)
    below = _fastest_larger_below(chosen.recipe, trials, speed_now, band)
    if below is not None:
        return _beside_other("A larger size", below, speed_now, band)
    half = half_of(trials, chosen.recipe)
    if half is not None:
        return _beside_other(_name_of_half(chosen.recipe, half.recipe), half, speed_now, band)
    smaller = _between((_HALF[1], _CLEARLY_SMALLER), trials, chosen.recipe)
    if smaller:
        return _beside_other("A smaller size", smaller[-1], speed_now, band)
    return _beside_larger(chosen.recipe, trials, speed_now)


def _name_of_half(recipe: Recipe, half: Recipe) -> str:
    if abs(recipe.micro_batch_size - 2 * half.micro_batch_size) <= 1:
        return "Half as large"
    share = half.micro_batch_size / recipe.micro_batch_size
    return "About half as large" if abs(share - 0.5) <= _ABOUT else "A smaller size"


def _fastest_smaller(recipe: Recipe, trials: Sequence[Trial], speed_now: float) -> Trial | None:
    """Return the fastest run of a smaller micro-batch, where that is faster; halves are spoken of by themselves."""
    smaller = [each for each in comparable(trials, recipe) if each.recipe.micro_batch_size < recipe.micro_batch_size]
    fastest = max(smaller, key=lambda each: each.samples_per_s or 0.0, default=None)
    is_faster = fastest is not None and (fastest.samples_per_s or 0.0) > speed_now * (1 + EQUAL_THROUGHPUT)
    return fastest if is_faster and fastest is not half_of(trials, recipe) else None


def _fastest_larger_below(recipe: Recipe, trials: Sequence[Trial], speed_now: float, band: Band) -> Trial | None:
    """Return the fastest run of a larger micro-batch that is faster and below the band, as where evaluation peaks."""
    larger = [
        each
        for each in comparable(trials, recipe)
        if each.recipe.micro_batch_size > recipe.micro_batch_size
        and each.outcome.measurement is not None
        and band.place(each.outcome.measurement.peak_device_bytes) is Place.BELOW
    ]
    fastest = max(larger, key=lambda each: each.samples_per_s or 0.0, default=None)
    is_faster = fastest is not None and (fastest.samples_per_s or 0.0) > speed_now * (1 + EQUAL_THROUGHPUT)
    return fastest if is_faster else None


def _beside_other(name: str, other: Trial, speed_now: float, band: Band) -> str | None:
    measured = other.outcome.measurement
    if measured is None:
        return None
    speedup = speed_now / measured.samples_per_s
    gain = speedup - 1
    size, speed = f"micro-batch {other.recipe.micro_batch_size}", f"{format_rate(measured.samples_per_s)} samples/s"
    if gain > EQUAL_THROUGHPUT:
        gained = f"gains {gain:.0%}" if speedup < TENFOLD else "is more than ten times as fast"
        return f"{name}, {size}, runs {speed}: the larger one {gained}."
    share = measured.peak_device_bytes / band.total_bytes
    standing = "as fast" if gain > -EQUAL_THROUGHPUT else "faster"
    said = f"{name} is {standing}: {size} runs {speed} with"
    place = band.place(measured.peak_device_bytes)
    if place is not Place.BELOW:
        return f"{said} {share:.0%} of the device{', above the band' if place is Place.ABOVE else ''}."
    percent = round(100 * share)
    if percent >= 100 * band.min_utilisation:
        percent = int(100 * share)  # rounded down, so that it is not the band's edge
    return f"{said} {percent}% of the device, below the band; --min-util {_rounded_down(share):g} recommends it."


def _beside_larger(recipe: Recipe, trials: Sequence[Trial], speed_now: float) -> str | None:
    """Say that a clearly larger size is no faster."""
    low, high = _HALF
    larger = _between((1 / _CLEARLY_SMALLER, 1 / low), trials, recipe)
    measured = larger[0].outcome.measurement if larger else None
    if measured is None or measured.samples_per_s > speed_now * (1 + EQUAL_THROUGHPUT):
        return None
    size = larger[0].recipe.micro_batch_size
    name = "Twice as large" if size * high >= recipe.micro_batch_size else "A larger size"
    standing = "slower" if measured.samples_per_s < speed_now * (1 - EQUAL_THROUGHPUT) else "no faster"
    return f"{name} is {standing}: micro-batch {size} runs {format_rate(measured.samples_per_s)} samples/s."


def _rounded_down(share: float) -> float:
    return int(share * 20) / 20
