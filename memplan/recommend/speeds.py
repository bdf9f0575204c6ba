"""How fast a recipe runs, judged by all its runs. Disturbances only ever slow a run down: the fastest counts."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Protocol, TypeVar

from memplan.units import format_rate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memplan.recipe import Recipe
    from memplan.results import Measurement, Trial

# Runs of one recipe, or steps of one, that differ by more than this were disturbed, or the clock of the card changed.
_UNSTEADY_SHARE = 0.2
_NO_MEASURE = 1.5
_BUSY = "something else keeps this machine busy, and the speeds here compare only roughly."


class TimedRun(Protocol):
    """A live run, whole or as a row of a report."""

    @property
    def recipe(self) -> Recipe:
        """What was run."""

    @property
    def fits(self) -> bool:
        """Whether it completed within its budget."""

    @property
    def samples_per_s(self) -> float | None:
        """Its speed; None where nothing was measured."""


RunT = TypeVar("RunT", bound=TimedRun)


def apart_from_rate(recipe: Recipe) -> Recipe:
    """Return a recipe without its learning rate, which has no part in speed or memory."""
    return replace(recipe, learning_rate=None)


def fastest_run(recipe: Recipe, runs: Iterable[TimedRun]) -> float | None:
    """Return the samples per second of a recipe's fastest run that fits, at any learning rate; None without a run."""
    return max(_speeds(recipe, runs), default=None)


def compare_roughly(recipe: Recipe, runs: Iterable[TimedRun]) -> bool:
    """Whether runs of one recipe differ in speed by so much that no other recipe can be told to be faster."""
    speeds = _speeds(recipe, runs)
    return max(speeds, default=0.0) > _NO_MEASURE * min(speeds, default=0.0)


def unsteadiness(recipe: Recipe, trials: Sequence[Trial]) -> str | None:
    """Say that runs of one recipe, or the steps of its fastest run, differ in speed by more than a fifth; else None."""
    speeds = _speeds(recipe, trials)
    if not speeds:
        return None
    if _is_unsteady(min(speeds), max(speeds)):
        slowest, fastest = format_rate(min(speeds)), format_rate(max(speeds))
        return f"Runs of this recipe came to {slowest} and {fastest} samples/s: {_BUSY}"
    best = max(_own(recipe, trials), key=lambda each: each.samples_per_s or 0.0)
    return _unsteadiness_of_steps(best.outcome.measurement)


def _unsteadiness_of_steps(measured: Measurement | None) -> str | None:
    """Say so where the step that counts is slower than the fastest; single slow steps count for nothing."""
    if measured is None:
        return None
    usual = measured.samples_per_s
    best = usual * median(measured.step_times_s) / min(measured.step_times_s)
    if not _is_unsteady(usual, best):
        return None
    rates = f"{format_rate(usual)} samples/s, but the fastest {format_rate(best)}"
    return f"Its steps ran {rates}: unless batches differ, {_BUSY}"


def _is_unsteady(slow: float, fast: float) -> bool:
    return slow < fast * (1 - _UNSTEADY_SHARE)


def _speeds(recipe: Recipe, runs: Iterable[TimedRun]) -> list[float]:
    return [run.samples_per_s for run in _own(recipe, runs) if run.samples_per_s is not None]


def _own(recipe: Recipe, runs: Iterable[RunT]) -> list[RunT]:
    wanted = apart_from_rate(recipe)
    return [run for run in runs if run.fits and apart_from_rate(run.recipe) == wanted]
