"""From a recommended recipe to a patch: the learning rate and the schedule that go with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan.configs import RecipeChange, plan_patch
from memplan.recommend.scaling import iteration_factor, optimizer_step_factor, rule_remark, scale_learning_rate

if TYPE_CHECKING:
    from memplan.planning.request import PlanRequest, Subject
    from memplan.recipe import Recipe
    from memplan.results import ConfigPatch


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
    """Scale the original learning rate with the global batch; one that is held keeps it."""
    original = original_recipe(subject)
    if original.learning_rate is None:
        return ScaledRecipe(recipe=replace(recipe, learning_rate=None), remark=None)
    ratio = recipe.global_batch_size / original.global_batch_size
    rate = scale_learning_rate(original.learning_rate, ratio=ratio, rule=request.learning_rate_rule)
    remark = rule_remark(optimizer_name, request.learning_rate_rule, ratio) if ratio != 1 else None
    return ScaledRecipe(recipe=replace(recipe, learning_rate=rate), remark=remark)


def write_patch(recipe: Recipe, subject: Subject, request: PlanRequest, *, size_reason: str) -> ConfigPatch | None:
    """Write the change into a patch for the user's config; None where there is no config or nothing changes."""
    if subject.config is None or recipe == subject.current:
        return None
    original = original_recipe(subject)
    change = RecipeChange(
        recipe=recipe,
        reasons=_reasons(recipe, subject, request, size_reason),
        iteration_factor=iteration_factor(original, recipe),
        optimizer_step_factor=optimizer_step_factor(original, recipe),
        options=request.facts(),
    )
    return plan_patch(subject.config, change, style=request.patch_style)


def _reasons(recipe: Recipe, subject: Subject, request: PlanRequest, size_reason: str) -> dict[str, str]:
    original = original_recipe(subject)
    batches = f"global batch {original.global_batch_size} to {recipe.global_batch_size}"
    held = f"holds the global batch of {recipe.global_batch_size}"
    return {
        "micro_batch_size": size_reason,
        "accumulation_steps": held if request.global_batch_size else "as tried in the final trial",
        "precision": "the fastest in the band",
        "learning_rate": f"scaled by the {request.learning_rate_rule} rule, {batches}",
        "schedule": f"counted in iterations, {batches}",
    }
