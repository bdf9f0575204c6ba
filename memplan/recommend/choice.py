"""The choice among recipes that were tried.

Band first, then throughput; a recipe within 3 % of the fastest is as good and the smaller one wins, and the recipe the
user already has wins over any that is not better by more than that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.recommend.band import Place
from memplan.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.recipe import Recipe
    from memplan.recommend.band import Band
    from memplan.results import Measurement, Trial

EQUAL_THROUGHPUT = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The trial whose recipe is recommended, and why, one sentence each."""

    trial: Trial
    reasons: tuple[str, ...]


def choose(trials: Sequence[Trial], band: Band, *, current: Recipe) -> Choice | None:
    """Choose among the trials that fit below the band's upper edge; None where there is none.

    Args:
        trials: live runs of any recipes on one device.
        band: the utilisation to land in.
        current: the recipe in the user's config.
    """
    fitting = [(trial, read) for trial in trials if (read := _measured(trial)) and _is_allowed(read, band)]
    inside = [pair for pair in fitting if band.place(pair[1].peak_device_bytes) is Place.INSIDE]
    candidates = inside or _largest(fitting)
    if not candidates:
        return None
    fastest = max(read.samples_per_s for _, read in candidates)
    equals = [pair for pair in candidates if pair[1].samples_per_s >= fastest * (1 - EQUAL_THROUGHPUT)]
    kept = next((pair for pair in equals if pair[0].recipe == current), None)
    trial, read = kept or min(equals, key=lambda pair: pair[1].peak_device_bytes)
    return Choice(trial=trial, reasons=tuple(_reasons(trial, read, fitting, candidates, band, current)))


def _measured(trial: Trial) -> Measurement | None:
    return trial.outcome.measurement if trial.fits else None


def _is_allowed(read: Measurement, band: Band) -> bool:
    return band.place(read.peak_device_bytes) is not Place.ABOVE


def _largest(fitting: list[tuple[Trial, Measurement]]) -> list[tuple[Trial, Measurement]]:
    """Of each precision, the run with the highest peak: the nearest to a band that nothing reached."""
    nearest: dict[str, tuple[Trial, Measurement]] = {}
    for trial, read in fitting:
        known = nearest.get(trial.recipe.precision)
        if known is None or read.peak_device_bytes > known[1].peak_device_bytes:
            nearest[trial.recipe.precision] = (trial, read)
    return list(nearest.values())


def _reasons(
    trial: Trial,
    read: Measurement,
    fitting: list[tuple[Trial, Measurement]],
    candidates: list[tuple[Trial, Measurement]],
    band: Band,
    current: Recipe,
) -> list[str]:
    utilisation = read.peak_device_bytes / band.total_bytes
    edges = f"{band.min_utilisation:.0%}–{band.max_utilisation:.0%}"
    place = band.place(read.peak_device_bytes)
    reasons = [f"It peaks at {format_bytes(read.peak_device_bytes)}, {utilisation:.0%} of the device ({edges} wanted)."]
    if place is Place.BELOW:
        reasons.append("Nothing that was tried reaches the band; this is the nearest below it.")
    rivals = [other for other, _ in candidates if other is not trial]
    if rivals:
        faster = sum(1 for _, other in candidates if other.samples_per_s > read.samples_per_s)
        standing = "the fastest" if not faster else f"within {EQUAL_THROUGHPUT:.0%} of the fastest"
        reasons.append(f"At {read.samples_per_s:.1f} samples/s it is {standing} of {len(candidates)} recipes there.")
    before = next((other for other in fitting if other[0].recipe == current), None)
    if before and trial.recipe != current:
        gain = read.samples_per_s / before[1].samples_per_s
        reasons.append(f"The current recipe runs {before[1].samples_per_s:.1f} samples/s: {gain:.2f} times that.")
    return reasons
