"""The plan: what memplan recommends, on what evidence, and how a caller takes it over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

from memplan.configs.objects import changed_object, config_of_object
from memplan.configs.reading import read_config
from memplan.configs.replicas import for_replicas
from memplan.json_documents import json_document, json_ready
from memplan.notebooks import ShownAsPrinted
from memplan.patches import ConfigPatch
from memplan.plans.changes import change_to, original_recipe, patch_of, with_scaled_rate
from memplan.plans.overrides import OverrideStyle, framework_arguments, knob_values, line_of, style_named
from memplan.plans.request import PlanRequest
from memplan.recipe import Recipe
from memplan.results import Estimate, PrecisionVerdict, Trial
from memplan.units import format_bytes

_Mappings = Literal["dict", "transformers", "lightning", "accelerate"]
_Lines = Literal["flags", "hydra", "cfg-options", "key-value"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ShownAsPrinted):
    """The recommended recipe, the evidence for it and the patch.

    Args:
        run_id: under which the run is stored.
        workload_name: what is trained.
        device_name: what the plan is for.
        device_total_bytes: the budget the utilisation refers to.
        min_utilisation: lower edge of the band.
        max_utilisation: upper edge of the band.
        current: the recipe in the user's config.
        recipe: the recommended recipe, learning rate included.
        chosen: the trial of exactly the recommended recipe; None where the device is not present and the recipe is
            recommended by its estimate alone.
        estimate: prediction for the recommended recipe on the device the plan is for; None where it cannot be traced.
        trials: every live run, in order.
        precisions: one verdict for each precision that was compared.
        reasons: why this recipe, one sentence each.
        config_patch: change to the user's config; None where there is no file or nothing to change.
        notes: warnings and limits, one phrase each.
        request: what was asked for.
        config_path: the config it was made from, absolute; None for a workload handed over in Python.
        command: the line that trains the recommended recipe, where a training command was planned for; ``{steps}`` in
            it is left to the user.
        cached_from: when it was made, UTC, ISO 8601, where it is given out again; None where it was made just now.
    """

    run_id: str
    workload_name: str
    device_name: str
    device_total_bytes: int
    min_utilisation: float
    max_utilisation: float
    current: Recipe
    recipe: Recipe
    chosen: Trial | None
    estimate: Estimate | None
    trials: tuple[Trial, ...]
    precisions: tuple[PrecisionVerdict, ...]
    reasons: tuple[str, ...]
    config_patch: ConfigPatch | None
    notes: tuple[str, ...] = ()
    request: PlanRequest = field(default_factory=PlanRequest)
    config_path: str | None = None
    command: str | None = None
    cached_from: str | None = None

    @property
    def changes_anything(self) -> bool:
        """Whether the recommended recipe differs from the one in the config."""
        return self.recipe != self.current

    @property
    def evidence(self) -> str:
        """What was seen of the recommended recipe, in a few words."""
        return evidence_of(self.chosen, self.estimate, self.device_total_bytes)

    def __str__(self) -> str:
        """Write the recommendation, its reasons and its notes, as ``print`` shows them in a notebook."""
        rate = "" if self.recipe.learning_rate is None else f", learning rate {self.recipe.learning_rate:g}"
        notes = [f"note: {each}" for each in self.notes]
        return "\n".join([f"{self.workload_name} on {self.device_name}: {self.recipe}{rate}", *self.reasons, *notes])

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON-ready data."""
        return {**json_ready(self)}

    def to_json(self) -> str:
        """Write the plan as one JSON document with its ``schema_version``."""
        return json_document(self.to_dict())

    @overload
    def overrides(self, style: _Mappings = "dict", *, knobs: Mapping[str, str] | None = None) -> dict[str, Any]: ...

    @overload
    def overrides(self, style: _Lines, *, knobs: Mapping[str, str] | None = None) -> str: ...

    @overload
    def overrides(self, style: str, *, knobs: Mapping[str, str] | None = None) -> dict[str, Any] | str: ...

    def overrides(self, style: str = "dict", *, knobs: Mapping[str, str] | None = None) -> dict[str, Any] | str:
        """Return what to set, as a mapping or as words for a command.

        A plan for a config gives every value that changes, by its dotted key, schedules included; empty where nothing
        does. A plan for a workload gives all knobs, by memplan's names or those in ``knobs``.

        Args:
            style: a mapping: ``dict``, or ``transformers``, ``lightning``, ``accelerate`` for arguments of
                ``TrainingArguments``, ``Trainer``, ``Accelerator``; a line: ``flags``, ``hydra``, ``cfg-options``,
                ``key-value``.
            knobs: knob name -> the name to give it instead; of effect on plans for workloads only.

        Raises:
            UsageError: there is no such style, or no such knob.
        """
        wanted = style_named(style)
        arguments = framework_arguments(self.recipe, wanted)
        if arguments is not None:
            return arguments
        values = self._changed_values(knobs or {})
        return values if wanted is OverrideStyle.DICT else line_of(values, wanted)

    def patch(self, path: str | Path, *, knobs: Mapping[str, str] | None = None, format_name: str | None = None) -> str:
        """Write the plan as a unified diff for a config file; nothing on disk changes.

        The config's own learning rate and schedule are scaled from its batch to the plan's.

        Args:
            path: a config of any kind memplan reads.
            knobs: knob name -> dotted key, as ``--map`` takes them.
            format_name: ecosystem to read it as; None recognises it by its content.

        Returns:
            What ``git apply`` takes; empty where the config already says all this.

        Raises:
            ConfigError: the file cannot be read.
            PatchError: it cannot express the recipe.
        """
        config = read_config(Path(path), format_name=format_name, knob_keys=knobs)
        config = for_replicas(config, self.recipe.world_size)
        current = replace(config.recipe, world_size=self.recipe.world_size)
        original = original_recipe(config, current, self.request)
        recipe = with_scaled_rate(self.recipe, original, self.request)
        change = change_to(
            recipe,
            original,
            self.request,
            why=self.evidence,
            device_total_bytes=self.device_total_bytes,
        )
        patch = None if recipe == current else patch_of(config, change, self.request)
        return "" if patch is None else patch.diff

    def apply(self, config: T, *, knobs: Mapping[str, str] | None = None, format_name: str | None = None) -> T:
        """Set the plan's knobs on a config in memory and return it.

        Its own learning rate and schedule, where it has them, are scaled from its batch to the plan's, so that a second
        call changes nothing.

        Args:
            config: a mapping, namespace or dataclass, ``TrainingArguments``, or a config of OmegaConf, mmcv or
                mmengine; changed in place, or returned as a changed copy where it is a frozen dataclass.
            knobs: knob name -> dotted key; without them the usual names are looked for.
            format_name: ecosystem to read it as; None recognises it by its content.

        Raises:
            UsageError: it has no place for a knob that changes, and nothing of it has changed; or it refuses a value.
            ConfigError: a key is not in it.
        """
        read = config_of_object(config, assumed=self.current, knob_keys=knobs, format_name=format_name)
        original = replace(read.recipe, world_size=self.current.world_size)
        recipe = with_scaled_rate(self.recipe, original, self.request)
        if recipe == original:
            return config
        changed: T = changed_object(config, change_to(recipe, original, self.request, why=self.evidence), read)
        return changed

    def _changed_values(self, knobs: Mapping[str, str]) -> dict[str, Any]:
        if self.config_patch is not None:
            return {each.key: each.value for each in self.config_patch.changes}
        if self.config_path is not None and not self.changes_anything:
            return {}
        return {knobs.get(name, name): value for name, value in knob_values(self.recipe, named=knobs).items()}


def evidence_of(chosen: Trial | None, estimate: Estimate | None, total_bytes: int) -> str:
    """Say how much of a device a recipe takes: measured where it was tried, else estimated."""
    total = format_bytes(total_bytes)
    if chosen is not None:
        return f"peaks at {chosen.utilisation or 0:.0%} of {total}"
    share = estimate.peak_process_bytes / total_bytes if estimate else 0
    return f"predicted to peak at {share:.0%} of {total}"
