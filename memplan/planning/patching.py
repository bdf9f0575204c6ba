"""From a recommended recipe to a patch: the learning rate and the schedule that go with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan.configs import RecipeChange, plan_patch
from memplan.recommend.scaling import (
    LearningRateRule,
    iteration_factor,
    optimizer_step_factor,
    rule_remark,
    scale_learning_rate,
)

if TYPE_CHECKING:
    from memplan.patches import ConfigPatch
    from memplan.planning.request import Subject
    from memplan.plans import PlanRequest
    from memplan.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledRecipe:
    """A recipe with the learning rate that goes with its global batch, and the remark on the rule that was used."""

    recipe: Recipe
    remark: str | None


def original_recipe(subject: Subject) -> Recipe:
    """Return the recipe before memplan first changed it, from which everything is scaled."""
    config = subject.config
    return config.original.recipe if config is not None and config.original is not None else subject.current


def scale(recipe: Recipe, subject: Subject, request: PlanRequest, optimizer_name: str) -> ScaledRecipe:
    """Scale the original learning rate with the global batch; where a global batch is held, the rate stays."""
    original = original_recipe(subject)
    ratio = recipe.global_batch_size / original.global_batch_size
    rule = LearningRateRule.NONE if request.global_batch_size is not None else request.learning_rate_rule
    if ratio == 1:
        return ScaledRecipe(recipe=replace(recipe, learning_rate=original.learning_rate), remark=None)
    if original.learning_rate is None:
        remark = f"the global batch changes by a factor of {ratio:.3g}, and memplan knows no learning rate to scale"
        return ScaledRecipe(recipe=replace(recipe, learning_rate=None), remark=remark)
    rate = scale_learning_rate(original.learning_rate, ratio=ratio, rule=rule)
    remark = rule_remark(optimizer_name, rule, ratio)
    return ScaledRecipe(recipe=replace(recipe, learning_rate=rate), remark=remark)


def draft(subject: Subject, request: PlanRequest) -> None:
    """Write a patch as the plan is going to need it and throw it away, so that trouble shows before any trial.

    Raises:
        PatchError: a change of micro-batch, and of accumulation where that is asked for, cannot be written.
    """
    steps = subject.current.accumulation_steps + (request.global_batch_size is not None)
    size = subject.current.micro_batch_size + 1
    changed = replace(subject.current, micro_batch_size=size, accumulation_steps=steps)
    write_patch(scale(changed, subject, request, "the optimizer").recipe, subject, request, why="a draft")


def write_patch(recipe: Recipe, subject: Subject, request: PlanRequest, *, why: str) -> ConfigPatch | None:
    """Write the change into a patch for the user's config; None where there is nothing to write or no way to.

    Args:
        recipe: the recipe the config shall set.
        subject: what is trained.
        request: what was asked for.
        why: what was seen of this recipe, e.g. ``peaks at 72% of 1.50 GiB``.

    Raises:
        PatchError: the change cannot be written.
    """
    if subject.config is None or subject.unwritable is not None or recipe == subject.current:
        return None
    original = original_recipe(subject)
    change = RecipeChange(
        recipe=recipe,
        reasons=_reasons(recipe, original, request, why),
        iteration_factor=iteration_factor(original, recipe),
        optimizer_step_factor=optimizer_step_factor(original, recipe),
        options=request.facts(),
    )
    patch = plan_patch(subject.config, change, style=request.patch_style)
    return patch if patch.changes else None


def _reasons(recipe: Recipe, original: Recipe, request: PlanRequest, why: str) -> dict[str, str]:
    batches = f"global batch {original.global_batch_size} to {recipe.global_batch_size}"
    held = request.global_batch_size is not None
    return {
        "micro_batch_size": why,
        "accumulation_steps": f"holds the global batch of {recipe.global_batch_size}" if held else why,
        "precision": why,
        "learning_rate": f"scaled by the {request.learning_rate_rule} rule, {batches}",
        "schedule": f"counted in iterations, {batches}",
    }
