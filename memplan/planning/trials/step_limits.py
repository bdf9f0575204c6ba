"""How long a step of one recipe may take, judged by a trial of another."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from memplan.probe.trials import StepLimit

if TYPE_CHECKING:
    from memplan.recipe import Recipe
    from memplan.results import Trial

# A precision whose step takes this many times as long as the reference's is not worth waiting for.
_HOPELESS_SLOWDOWN = 10
_SHORTEST_STEP_LIMIT_S = 10.0
# A step of the reference's own precision that takes this many times as long hangs, or swaps.
_HANGS_AFTER = 30
_SHORTEST_HANG_S = 60.0
# A precision that is this many times as slow at the same micro-batch is not tried at a larger one: what weighs most at
# small sizes, the casts of autocast and the launches of kernels, does not make up so much. Where its steps are long,
# two of them are enough to know.
_TOO_SLOW = 3
_LONG_STEP_S = 2.0


def _usual_step_s(reference: Trial, recipe: Recipe) -> float | None:
    """Seconds that a recipe's optimizer step takes at the reference's speed; None where nothing was measured."""
    measured = reference.outcome.measurement
    if measured is None:
        return None
    return median(measured.step_times_s) / _samples(reference.recipe) * _samples(recipe)


def step_limit(reference: Trial, recipe: Recipe, *, may_pause: bool) -> StepLimit | None:
    """How long a recipe's optimizer step may take before its trial is given up; None for no such limit.

    Args:
        reference: a trial of the current micro-batch.
        recipe: what is tried.
        may_pause: whether a step may hold what comes between steps, as an evaluation does in a training script.
    """
    usual_s = _usual_step_s(reference, recipe)
    if usual_s is None:
        return None
    precision = reference.recipe.precision
    if recipe.precision is precision:
        limit_s = max(_SHORTEST_HANG_S, _HANGS_AFTER * usual_s)
        slow_s = limit_s if may_pause else None
    else:
        limit_s = max(_SHORTEST_STEP_LIMIT_S, _HOPELESS_SLOWDOWN * usual_s)
        slow_s = max(_LONG_STEP_S, _TOO_SLOW * usual_s)
    return StepLimit(limit_s=None if may_pause else limit_s, usual_s=usual_s, usual_precision=precision, slow_s=slow_s)


def hopeless_slowdown(trial: Trial, reference: Trial) -> float | None:
    """How many times slower than the reference even the fastest step was; None where larger sizes are worth trying."""
    measured, usual_s = trial.outcome.measurement, _usual_step_s(reference, trial.recipe)
    if measured is None or usual_s is None or min(measured.step_times_s) < _TOO_SLOW * usual_s:
        return None
    return min(measured.step_times_s) / usual_s


def _samples(recipe: Recipe) -> int:
    return recipe.micro_batch_size * recipe.accumulation_steps
