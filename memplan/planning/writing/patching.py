"""The learning rate and the patch of a plan."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan.errors import PatchError
from memplan.plans.changes import COMMAND_PRECISION, change_to, original_recipe, patch_of, with_scaled_rate
from memplan.probe.commands.template import PlaceholderName, parse_template
from memplan.recommend.scaling import rule_remark, trust_warning
from memplan.workload import TrainingCommand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan.configs import KnobName
    from memplan.patches import ConfigPatch
    from memplan.planning.subject import Subject
    from memplan.plans import PlanRequest
    from memplan.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledRecipe:
    """A recipe with the learning rate that goes with its global batch.

    Args:
        recipe: the recipe, learning rate included.
        remark: on the rule that was used; None where the batch stays.
        warning: where the batch changes by more than a rule can be trusted with; None elsewhere.
    """

    recipe: Recipe
    remark: str | None
    warning: str | None = None


def scale(recipe: Recipe, subject: Subject, request: PlanRequest, optimizer_name: str) -> ScaledRecipe:
    """Scale the original learning rate with the global batch, by the rule that was asked for."""
    original = original_recipe(subject.config, subject.current, request)
    ratio = recipe.global_batch_size / original.global_batch_size
    scaled = with_scaled_rate(recipe, original, request)
    if ratio == 1:
        return ScaledRecipe(recipe=scaled, remark=None)
    if original.learning_rate is None:
        remark = f"the global batch changes by a factor of {ratio:.4g}, and memplan knows no learning rate to scale"
        return ScaledRecipe(recipe=scaled, remark=remark)
    remark = rule_remark(optimizer_name, request.rate_rule, ratio, learning_rate=original.learning_rate)
    return ScaledRecipe(recipe=scaled, remark=remark, warning=trust_warning(original, recipe))


def draft(subject: Subject, request: PlanRequest) -> None:
    """Write a patch such as the plan will need and discard it, so that obstacles show before any trial.

    Raises:
        PatchError: a change of micro-batch, and of accumulation where that is asked for, cannot be written.
    """
    steps = subject.current.accumulation_steps + (request.global_batch_size is not None)
    size = subject.current.micro_batch_size + 1
    changed = replace(subject.current, micro_batch_size=size, accumulation_steps=steps)
    try:
        write_patch(scale(changed, subject, request, "the optimizer").recipe, subject, request, why="a draft")
    except PatchError as error:
        if request.global_batch_size is not None:
            hint = "a global batch is held by accumulation, which the config must be able to say"
        elif _is_writable_at_the_same_rate(changed, subject, request):
            hint = "write a number there, or have the rate left as it is with --lr-rule none"
        else:
            raise
        raise PatchError(error.problem, where=error.where, hint=hint) from None


def _is_writable_at_the_same_rate(recipe: Recipe, subject: Subject, request: PlanRequest) -> bool:
    try:
        write_patch(recipe, subject, request, why="a draft")
    except PatchError:
        return False
    return True


def write_patch(
    recipe: Recipe,
    subject: Subject,
    request: PlanRequest,
    *,
    why: str,
    device_total_bytes: int | None = None,
    loader: Mapping[KnobName, int | bool] | None = None,
) -> ConfigPatch | None:
    """Write the change into a patch for the user's config; None where there is nothing to write or no way to.

    Args:
        recipe: the recipe the config shall set.
        subject: what is trained.
        request: what was asked for.
        why: what was seen of this recipe, e.g. ``peaks at 72% of 1.50 GiB``.
        device_total_bytes: what the device offers now; None for a draft.
        loader: settings of the data loader that shall change, too; None for none.

    Raises:
        PatchError: the change cannot be written; if only the loader's settings cannot, it is written
            without them.
    """
    written, now = subject.as_written(recipe), subject.as_written(subject.current)
    if subject.config is None or subject.unwritable is not None or (written == now and not loader):
        return None
    original = original_recipe(subject.config, subject.current, request)
    change = change_to(written, original, request, why=why, device_total_bytes=device_total_bytes)
    if written.precision != recipe.precision:
        change = replace(change, options={**change.options, COMMAND_PRECISION: str(recipe.precision)})
    if loader:
        with contextlib.suppress(PatchError):
            return _as_read(patch_of(subject.config, replace(change, loader=loader), request), subject)
    return _as_read(patch_of(subject.config, change, request), subject)


def _as_read(patch: ConfigPatch | None, subject: Subject) -> ConfigPatch | None:
    """Offer no flags in place of the patch to a command that reads the config alone."""
    source, placeholder = subject.source, PlaceholderName.PATCHED_CONFIG
    if patch is None or not isinstance(source, TrainingCommand) or not parse_template(source.template).has(placeholder):
        return patch
    return replace(patch, override_line=None)
