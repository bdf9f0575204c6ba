"""How fast a recipe runs, told from all its runs. What disturbs a machine only ever slows a run: the fastest counts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memplan.recipe import Recipe
    from memplan.results import Trial

# Runs of one recipe that differ by more than this were disturbed, or the clock of the card changed.
_UNSTEADY_SHARE = 0.2


def apart_from_rate(recipe: Recipe) -> Recipe:
    """Return a recipe without its learning rate, which has no part in speed or memory."""
    return replace(recipe, learning_rate=None)


def fastest_run(recipe: Recipe, trials: Iterable[Trial]) -> float | None:
    """Return the samples per second of a recipe's fastest run that fits, at any learning rate; None without a run."""
    return max(_speeds(recipe, trials), default=None)


def unsteadiness(recipe: Recipe, trials: Sequence[Trial]) -> str | None:
    """Say that runs of one recipe differ in speed by more than a fifth; None where they agree or there is one."""
    speeds = _speeds(recipe, trials)
    if len(speeds) < 2 or min(speeds) >= max(speeds) * (1 - _UNSTEADY_SHARE):
        return None
    return (
        f"Runs of this recipe came to {min(speeds):.1f} and {max(speeds):.1f} samples/s: something else keeps this "
        "machine busy, so the speeds here compare only roughly."
    )


def _speeds(recipe: Recipe, trials: Iterable[Trial]) -> list[float]:
    wanted = apart_from_rate(recipe)
    own = (trial for trial in trials if trial.fits and apart_from_rate(trial.recipe) == wanted)
    return [measured.samples_per_s for trial in own if (measured := trial.outcome.measurement) is not None]
