"""Hugging Face TrainingArguments in flat YAML or JSON.

Keys and defaults from transformers' ``TrainingArguments``: rate 5e-5, no accumulation; ``max_steps``, ``warmup_steps``,
``save_steps``, ``eval_steps`` and ``logging_steps`` count optimizer steps, floats below 1 are ratios, negative
values mean unset. Tools that share the keys call the micro-batch ``micro_batch_size`` and take ``bf16: auto``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memplan.configs.command_lines import as_flags
from memplan.configs.ecosystem import Assignment
from memplan.configs.keys import contains, get
from memplan.configs.knobs import (
    count_at,
    obstacle_of_single_values,
    reason_for,
    recipe_from,
    single_assignments,
)
from memplan.configs.syntaxes import JSON, SHELL, YAML
from memplan.configs.user_config import KnobName, PatchStyle
from memplan.recipe import Precision

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan.configs.documents import Document
    from memplan.configs.ecosystem import KnobKeys
    from memplan.configs.user_config import RecipeChange, UserConfig
    from memplan.recipe import Recipe

DEFAULT_LEARNING_RATE = 5e-5
STEPS_KEY, _RATE = "gradient_accumulation_steps", "learning_rate"
_BATCH_KEYS = ("per_device_train_batch_size", "micro_batch_size")
_FLOOR = "lr_scheduler_kwargs.min_lr"
_CHECKPOINTING_KEYS = ("activation_checkpointing", "gradient_checkpointing")
_SWITCHES = {Precision.BF16: "bf16", Precision.FP16: "fp16", Precision.TF32: "tf32"}
_SIGNS = (STEPS_KEY, _RATE, "num_train_epochs", "lr_scheduler_type", "output_dir")


class HuggingFace:
    """Flat files of TrainingArguments."""

    name = "huggingface"
    loader_package = None
    styles = (PatchStyle.IN_PLACE,)

    def child_form(self, document: Document) -> None:
        """Return nothing: these configs do not inherit."""

    def override_line(self, assignments: Sequence[Assignment]) -> str | None:
        """Return flags of a program that parses TrainingArguments."""
        return as_flags(assignments)

    def recognises(self, document: Document) -> bool:
        """See a flat YAML or JSON file with the per-device batch size and another of the arguments."""
        values = document.values
        is_flat = document.syntax in (YAML, JSON, SHELL) and any(key in values for key in _BATCH_KEYS)
        return is_flat and any(key in values for key in _SIGNS)

    def own_keys(self, document: Document) -> KnobKeys:
        """Return the arguments that are in the file."""
        keys = {
            KnobName.MICRO_BATCH_SIZE: _BATCH_KEYS,
            KnobName.ACCUMULATION_STEPS: (STEPS_KEY,),
            KnobName.LEARNING_RATE: (_RATE,),
            KnobName.ACTIVATION_CHECKPOINTING: _CHECKPOINTING_KEYS,
        }
        found = {
            name: tuple(each for each in named if contains(document.values, each))[:1] for name, named in keys.items()
        }
        counted = ("max_steps", "warmup_steps", "save_steps", "eval_steps", "logging_steps")
        lengths = tuple(each for each in counted if _is_count(document.values.get(each)))
        floors = (_FLOOR,) if isinstance(get(document.values, _FLOOR), float) else ()
        return {**found, KnobName.MIN_LEARNING_RATE: floors, KnobName.OPTIMIZER_STEPS: lengths}

    def recipe(self, document: Document, keys: KnobKeys) -> Recipe:
        """Read the recipe, with the defaults of TrainingArguments where the file is silent."""
        steps = keys.get(KnobName.ACCUMULATION_STEPS)
        found = recipe_from(
            document,
            keys,
            precision=_precision(document.values),
            accumulation_steps=count_at(document, steps[0]) if steps else 1,
        )
        return found if found.learning_rate is not None else replace(found, learning_rate=DEFAULT_LEARNING_RATE)

    def remarks(self, document: Document) -> tuple[str, ...]:
        """Return what is easily overlooked in these files."""
        values, found = document.values, []
        if values.get("auto_find_batch_size"):
            found.append(
                "auto_find_batch_size changes the batch behind the config's back; turn it off with a planned batch"
            )
        return tuple(found)

    def obstacle(self, config: UserConfig, recipe: Recipe) -> str | None:
        """Return what these arguments cannot say."""
        names = (KnobName.MICRO_BATCH_SIZE, KnobName.ACTIVATION_CHECKPOINTING)
        if found := obstacle_of_single_values(config, recipe, names=names):
            return found
        if recipe.precision not in (config.recipe.precision, Precision.FP32, *_SWITCHES):
            return f"TrainingArguments have no switch for {recipe.precision}"
        return None

    def assignments(self, config: UserConfig, change: RecipeChange) -> list[Assignment]:
        """Return the arguments' new values; those that are missing from the file are added."""
        found = single_assignments(config, change, names=tuple(KnobName))
        recipe = change.recipe
        if config.knob(KnobName.ACCUMULATION_STEPS) is None and recipe.accumulation_steps > 1:
            reason = reason_for(change, KnobName.ACCUMULATION_STEPS)
            found.append(Assignment(key=STEPS_KEY, value=recipe.accumulation_steps, reason=reason))
        wanted = recipe.learning_rate
        if config.knob(KnobName.LEARNING_RATE) is None and wanted not in (None, DEFAULT_LEARNING_RATE):
            found.append(Assignment(key=_RATE, value=wanted, reason=reason_for(change, KnobName.LEARNING_RATE)))
        return [*found, *_switches(config, change)]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _precision(values: Mapping[str, Any]) -> Precision:
    on = (precision for precision, key in _SWITCHES.items() if values.get(key) is True or values.get(key) == "auto")
    return next(on, Precision.FP32)


def _switches(config: UserConfig, change: RecipeChange) -> list[Assignment]:
    """Turn the wanted precision's switch on and the others off; tf32 stays on beside half precision."""
    wanted, reason = change.recipe.precision, reason_for(change, KnobName.PRECISION)
    if wanted == config.recipe.precision:
        return []
    found = []
    for precision, key in _SWITCHES.items():
        is_on = bool(config.values.get(key))
        stays = precision is Precision.TF32 and wanted.is_autocast
        if precision == wanted or (is_on and not stays):
            found.append(Assignment(key=key, value=precision == wanted, reason=reason))
    return found
