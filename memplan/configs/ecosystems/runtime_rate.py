"""Learning rates that an OpenMMLab runner scales itself: never scale twice.

``auto_scale_lr=dict(enable=True, base_batch_size=B)`` (mmdet 2.x, mmengine) multiplies the learning rate with
micro-batch * replicas / B when the optimizer is built; accumulation does not enter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memplan.configs.keys import contains, get
from memplan.configs.knob_changes import same_kind
from memplan.configs.languages.literals import without_noise
from memplan.configs.user_config import KnobName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan.configs.assignments import Assignment
    from memplan.configs.user_config import RecipeChange, UserConfig
    from memplan.recipe import Recipe


def at_run_time(values: Mapping[str, Any], recipe: Recipe) -> Recipe:
    """Return the recipe with the learning rate that the runner will really use, on one replica."""
    if recipe.learning_rate is None:
        return recipe
    return replace(recipe, learning_rate=without_noise(recipe.learning_rate * _factor(values, recipe)))


def before_run_time(config: UserConfig, change: RecipeChange, assignment: Assignment) -> Assignment:
    """Return the learning rate to write, so that the runner's own scaling arrives at the wanted one."""
    knob = config.knob(KnobName.LEARNING_RATE)
    if knob is None or assignment.key != knob.key:
        return assignment
    rate = assignment.value / _factor(config.values, change.recipe)
    return replace(assignment, value=same_kind(rate, assignment.value))


def remarks_on_runtime_rate(values: Mapping[str, Any]) -> list[str]:
    """Return what a user should know about a rate that is or may be scaled at run time."""
    if get(values, "auto_scale_lr.enable") is True:
        return [
            "auto_scale_lr is enabled: the rate shown is the runner's, and only what its scaling leaves out is changed"
        ]
    if contains(values, "auto_scale_lr"):
        return ["do not pass --auto-scale-lr with the patched config: it already holds the scaled rate"]
    return []


def _factor(values: Mapping[str, Any], recipe: Recipe) -> float:
    base = get(values, "auto_scale_lr.base_batch_size")
    is_enabled = get(values, "auto_scale_lr.enable") is True and isinstance(base, int) and base > 0
    return recipe.micro_batch_size / base if is_enabled else 1.0
