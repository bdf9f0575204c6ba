"""How fast a recipe runs, judged by all its runs. Disturbances only ever slow a run down: the fastest counts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memplan.recipe import Recipe

# Runs of one recipe that differ by more than this were disturbed, or the clock of the card changed.
_UNSTEADY_SHARE = 0.2


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


def apart_from_rate(recipe: Recipe) -> Recipe:
    """Return a recipe without its learning rate, which has no part in speed or memory."""
    return replace(recipe, learning_rate=None)


def fastest_run(recipe: Recipe, runs: Iterable[TimedRun]) -> float | None:
    """Return the samples per second of a recipe's fastest run that fits, at any learning rate; None without a run."""
    return max(_speeds(recipe, runs), default=None)


def unsteadiness(recipe: Recipe, runs: Sequence[TimedRun]) -> str | None:
    """Say that runs of one recipe differ in speed by more than a fifth; None where they agree or there is one."""
    speeds = _speeds(recipe, runs)
    if len(speeds) < 2 or min(speeds) >= max(speeds) * (1 - _UNSTEADY_SHARE):
        return None
    return (
        f"Runs of this recipe came to {min(speeds):.1f} and {max(speeds):.1f} samples/s: something else keeps this "
        "machine busy, so the speeds here compare only roughly."
    )


def _speeds(recipe: Recipe, runs: Iterable[TimedRun]) -> list[float]:
    wanted = apart_from_rate(recipe)
    own = (run for run in runs if run.fits and apart_from_rate(run.recipe) == wanted)
    return [run.samples_per_s for run in own if run.samples_per_s is not None]
