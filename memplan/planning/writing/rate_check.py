"""Check a patch's learning rate against the optimizer that the workload really makes: never scale twice."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan.configs import KnobName
from memplan.configs.evaluation.loading import load_patched
from memplan.configs.keys import with_value
from memplan.probe.optimizer_rates import RatesFailure, read_rates
from memplan.workload import TrainingCommand, WorkloadReference

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memplan.children import Template
    from memplan.configs import UserConfig
    from memplan.devices.cards import DeviceSpec
    from memplan.patches import ConfigPatch
    from memplan.planning.subject import Subject
    from memplan.recipe import Recipe
    from memplan.workload import WorkloadSource

_NEAR = 1e-6  # relative
_SCALING_FLAG = "--auto-scale-lr"  # of OpenMMLab's train scripts: switches on auto_scale_lr, whatever the config says
_UNCHECKED = "the patch's learning rate could not be checked against the optimizer"


def with_proven_rate(
    patch: ConfigPatch,
    recipe: Recipe,
    subject: Subject,
    rewrite: Callable[[Recipe], ConfigPatch | None],
    *,
    device: DeviceSpec,
    template: Template | None = None,
) -> tuple[ConfigPatch | None, str | None]:
    """Make the optimizer under the old config and under the patched one, and compare the rates of their groups.

    Args:
        patch: the patch as it was planned.
        recipe: what it sets.
        subject: what is trained.
        rewrite: writes the patch for another recipe.
        device: on which the run's trials are.
        template: a template of trials, which forks the child.

    Returns:
        The patch, without the learning rate where the code scales that itself; and what was found, as a note. None for
        the note where there is no workload of a config.
    """
    source, config = subject.source, subject.config
    if config is None or not isinstance(source, WorkloadReference):
        return _by_command(source, patch, recipe, rewrite)
    found = read_rates((source, _patched(source, patch, config)), device, template=template)
    if isinstance(found, RatesFailure):
        return patch, f"{_UNCHECKED}: {found.reason}"
    before, after = found.of_each
    if not before or len(before) != len(after):
        groups = f"{len(before)} parameter groups with a rate before the patch and {len(after)} after"
        return patch, f"{_UNCHECKED}: it has {groups}"
    planned = _planned_factor(config, patch)
    if _all_scaled(before, after, planned):
        return patch, f"checked: {_change_of(before, after)}, as the optimizer made from each config says"
    by_code = recipe.global_batch_size / subject.current.global_batch_size
    if planned != 1 and _all_scaled(before, after, planned * by_code):
        other = rewrite(replace(recipe, learning_rate=None))
        return other, "the training code scales the learning rate with the batch itself, so the config's is left alone"
    advice = f"though the config's changes by a factor of {planned:.4g}: see that the workload reads it"
    return patch, f"{_change_of(before, after)}, {advice}"


def _by_command(
    source: WorkloadSource, patch: ConfigPatch, recipe: Recipe, rewrite: Callable[[Recipe], ConfigPatch | None]
) -> tuple[ConfigPatch | None, str | None]:
    """Leave the learning rate to a command that scales it; no optimizer can be looked at here."""
    if not isinstance(source, TrainingCommand) or _SCALING_FLAG not in source.template.split():
        return patch, None
    other = rewrite(replace(recipe, learning_rate=None))
    return other, f"the command's {_SCALING_FLAG} scales the learning rate, so the config's is left alone"


def _patched(source: WorkloadReference, patch: ConfigPatch, config: UserConfig) -> WorkloadReference:
    """Return the workload of the patched config; where no file of its own changes, with the new values laid over it."""
    beside = {str(each.path) for each in config.companions if not each.within}
    if patch.files and patch.files[0].path not in beside:
        texts = {each.path: each.patched_text for each in patch.files}
        values = load_patched(config.document, Path(patch.files[0].path), texts).resolved_values
        return replace(source, config=values, config_path=patch.files[0].path)
    values = config.document.resolved_values
    for each in patch.changes:
        values = values if each.path in beside else with_value(values, each.key, each.value)
    return replace(source, config=values)


def _planned_factor(config: UserConfig, patch: ConfigPatch) -> float:
    """Return the factor by which the patch multiplies the config's learning rate; 1 where it leaves it alone."""
    knob = config.knob(KnobName.LEARNING_RATE)
    new = next((each.value for each in patch.changes if knob is not None and each.key == knob.key), None)
    return 1.0 if knob is None or not isinstance(new, int | float) else float(new) / float(knob.value)


def _all_scaled(before: Sequence[float], after: Sequence[float], factor: float) -> bool:
    return all(math.isclose(old * factor, new, rel_tol=_NEAR) for old, new in zip(before, after, strict=True))


def _change_of(before: Sequence[float], after: Sequence[float]) -> str:
    """Say in words how the highest rate changes."""
    old, new = max(before), max(after)
    many = f" (highest of {len(before)} parameter groups)" if len(before) > 1 else ""
    if old == new:
        return f"the learning rate stays at {old:.6g}{many}"
    return f"the learning rate goes from {old:.6g} to {new:.6g}{many}"
