"""From a recommended recipe to a change of a config: the learning rate and the schedule that go with it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.configs import RecipeChange, holds_batch_of_all, on_replicas, plan_patch, reference_world_size
from memplan.recommend.scaling import LearningRateRule, iteration_factor, optimizer_step_factor, scale_learning_rate

if TYPE_CHECKING:
    from memplan.configs import UserConfig
    from memplan.patches import ConfigPatch
    from memplan.plans.request import PlanRequest
    from memplan.recipe import Recipe


# Among the options kept in a patched config, beside what was asked for.
DEVICE_TOTAL = "device_total_bytes"
COMMAND_PRECISION = "command_precision"  # what the training command sets, where the config has no word for it


def original_recipe(config: UserConfig | None, current: Recipe, request: PlanRequest) -> Recipe:
    """Return the recipe before memplan first changed a config, from which everything is scaled.

    Where a config does not say for how many replicas it is written, it is taken to be for those that there are; a batch
    of all of them is the same for any number. What it says of them counts once the number of those there are is known.
    """
    if config is None:
        return current
    found = config.recipe if config.original is None else config.original.recipe
    cards = None if request.world_size is None else reference_world_size(config)
    if cards is not None:
        return replace(found, world_size=cards)
    is_open = found.world_size == 1 and not holds_batch_of_all(config)
    return on_replicas(config, found, current.world_size) if is_open else found


def with_scaled_rate(recipe: Recipe, original: Recipe, request: PlanRequest) -> Recipe:
    """Give a recipe the original learning rate, scaled with the global batch; None where the original's is unknown."""
    rate = original.learning_rate
    ratio = recipe.global_batch_size / original.global_batch_size
    if rate is not None and ratio != 1:
        rate = scale_learning_rate(rate, ratio=ratio, rule=request.rate_rule)
    return replace(recipe, learning_rate=rate)


def change_to(
    recipe: Recipe, original: Recipe, request: PlanRequest, *, why: str, device_total_bytes: int | None = None
) -> RecipeChange:
    """Describe the change from the original recipe to another one, schedules included.

    Args:
        recipe: what shall be set, learning rate included.
        original: the recipe before memplan first changed the config.
        request: what was asked for.
        why: what was seen of this recipe, e.g. ``peaks at 72% of 1.50 GiB``.
        device_total_bytes: what the device offered when the recipe was chosen, kept for a later run; None to forget it.
    """
    found = {} if device_total_bytes is None else {DEVICE_TOTAL: device_total_bytes}
    return RecipeChange(
        recipe=recipe,
        reasons=_reasons(recipe, original, request, why),
        iteration_factor=iteration_factor(original, recipe),
        optimizer_step_factor=optimizer_step_factor(original, recipe),
        options={**request.facts(), **found},
    )


def patch_of(config: UserConfig, change: RecipeChange, request: PlanRequest) -> ConfigPatch | None:
    """Write a change into a patch for a config; None where nothing differs.

    Raises:
        PatchError: the change cannot be written.
    """
    patch = plan_patch(config, change, style=request.patch_style)
    return patch if patch.changes else None


def _reasons(recipe: Recipe, original: Recipe, request: PlanRequest, why: str) -> dict[str, str]:
    batches = f"global batch {original.global_batch_size} to {recipe.global_batch_size}"
    held = request.global_batch_size is not None
    return {
        "micro_batch_size": why,
        "accumulation_steps": f"holds the global batch of {recipe.global_batch_size}" if held else why,
        "precision": why,
        "learning_rate": f"{_rate_reason(request)}, {batches}",
        "iterations": f"counted in forward/backward passes, {_of_pass(original)} to {_of_pass(recipe)} samples each",
        "optimizer_steps": f"counted in optimizer steps, {batches}",
    }


def _of_pass(recipe: Recipe) -> int:
    """Return the samples of one forward and backward pass on all replicas."""
    return recipe.micro_batch_size * recipe.world_size


def _rate_reason(request: PlanRequest) -> str:
    rule = request.rate_rule
    return "the original rate is kept" if rule is LearningRateRule.NONE else f"scaled by the {rule} rule"
