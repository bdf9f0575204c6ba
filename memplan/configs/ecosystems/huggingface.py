"""Hugging Face TrainingArguments in flat YAML or JSON.

Keys and defaults from transformers' ``TrainingArguments``: rate 5e-5, no accumulation; ``max_steps``, ``warmup_steps``,
``save_steps``, ``eval_steps`` and ``logging_steps`` count optimizer steps, floats below 1 are ratios, negative
values mean unset. Tools that share the keys call the micro-batch ``micro_batch_size`` and take ``bf16: auto``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from memplan.configs.ecosystems.accelerate import Accelerate, launch_file_named_in
from memplan.configs.ecosystems.deepspeed import DeepSpeed
from memplan.configs.ecosystems.ecosystem import Ecosystem, torch_loader_keys
from memplan.configs.keys import get, is_number_of_steps
from memplan.configs.knob_changes import additions, assigned, obstacle_of_single_values
from memplan.configs.knobs import declared_recipe, keys_in
from memplan.configs.languages.registry import JSON, SHELL, YAML
from memplan.configs.layout.command_lines import as_flags
from memplan.configs.user_config import KnobName
from memplan.recipe import Precision

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan.configs.assignments import Assignment
    from memplan.configs.documents import Document
    from memplan.configs.user_config import KnobKeys, RecipeChange, UserConfig
    from memplan.recipe import Recipe

DEFAULT_LEARNING_RATE = 5e-5
DEEPSPEED_KEY = "deepspeed"
STEPS_KEY, _RATE = "gradient_accumulation_steps", "learning_rate"
_BATCH_KEYS = ("per_device_train_batch_size", "micro_batch_size")
_FLOOR = "lr_scheduler_kwargs.min_lr"
_CHECKPOINTING_KEYS = ("activation_checkpointing", "gradient_checkpointing")
_SWITCHES = {Precision.BF16: "bf16", Precision.FP16: "fp16", Precision.TF32: "tf32"}
_SAVING = "save_steps"
_CPU_KEYS = ("use_cpu", "no_cuda")  # the second as transformers 4 has it, too
# What transformers' and diffusers' examples without a Trainer call what TrainingArguments call otherwise.
_FLAGS_WITHOUT_TRAINER = ("max_train_steps", "num_warmup_steps", "lr_warmup_steps", "checkpointing_steps")
_SIGNS = (STEPS_KEY, _RATE, "num_train_epochs", "lr_scheduler_type", "output_dir")


class HuggingFace(Ecosystem):
    """Flat files of TrainingArguments."""

    name = "huggingface"
    loader_packages: tuple[str, ...] = ("transformers",)
    loader_keys = torch_loader_keys("dataloader_")
    addable_loader_keys: ClassVar[Mapping[KnobName, str]] = {
        KnobName.PERSISTENT_WORKERS: "dataloader_persistent_workers"  # transformers 4.36 and later
    }

    def override_line(self, assignments: Sequence[Assignment]) -> str | None:
        """Return flags of a program that parses TrainingArguments; there are none for values within a section."""
        return None if any("." in each.key for each in assignments) else as_flags(assignments)

    def recognises(self, document: Document) -> bool:
        """Recognise a flat YAML or JSON file with the per-device batch size and another of the arguments."""
        values = document.values
        is_flat = document.language in (YAML, JSON, SHELL) and any(key in values for key in _BATCH_KEYS)
        is_scripts_own = document.language is SHELL and any(key in values for key in _FLAGS_WITHOUT_TRAINER)
        return is_flat and not is_scripts_own and any(key in values for key in _SIGNS)

    def companion_names(self, document: Document) -> Mapping[str, Any]:
        """Return the files of DeepSpeed and of accelerate among the arguments."""
        return {DeepSpeed.name: document.values.get(DEEPSPEED_KEY), Accelerate.name: launch_file_named_in(document)}

    def own_keys(self, document: Document) -> KnobKeys:
        """Return the arguments that are in the file."""
        keys = {
            KnobName.MICRO_BATCH_SIZE: _BATCH_KEYS,
            KnobName.ACCUMULATION_STEPS: (STEPS_KEY,),
            KnobName.LEARNING_RATE: (_RATE,),
            KnobName.ACTIVATION_CHECKPOINTING: _CHECKPOINTING_KEYS,
        }
        found = {name: present[:1] for name, present in keys_in(document.values, keys).items()}
        counted = ("max_steps", "warmup_steps", "save_steps", "eval_steps", "logging_steps")
        lengths = tuple(each for each in counted if is_number_of_steps(document.values.get(each)))
        floors = (_FLOOR,) if isinstance(get(document.values, _FLOOR), float) else ()
        return {**found, KnobName.MIN_LEARNING_RATE: floors, KnobName.OPTIMIZER_STEPS: lengths}

    def recipe(self, document: Document, keys: KnobKeys) -> Recipe:
        """Read the recipe, with the defaults of TrainingArguments where the file is silent."""
        found = declared_recipe(document, keys, precision=_precision(document.values))
        return found if found.learning_rate is not None else replace(found, learning_rate=DEFAULT_LEARNING_RATE)

    def remarks(self, document: Document, keys: KnobKeys) -> tuple[str, ...]:
        """Return what users easily overlook in these files."""
        said = "auto_find_batch_size changes the batch behind the config's back; turn it off with a planned batch"
        return (said,) if document.values.get("auto_find_batch_size") else ()

    def obstacle(self, config: UserConfig, recipe: Recipe) -> str | None:
        """Return why these arguments cannot express a recipe."""
        if found := obstacle_of_single_values(config, recipe, names=(KnobName.MICRO_BATCH_SIZE,)):
            return found
        if recipe.precision not in (config.recipe.precision, Precision.FP32, *_SWITCHES):
            return f"TrainingArguments have no switch for {recipe.precision}"
        return None

    def obstacle_on_cpu(self, config: UserConfig, precision: Precision) -> str | None:
        """Refuse what TrainingArguments refuse on the CPU, and fp16, which accelerate switches off there."""
        if config.knob(KnobName.PRECISION) is not None:
            return None
        if precision is Precision.FP16:
            return "a Trainer trains in fp32 where fp16 is asked for on the CPU"
        if precision is Precision.FP32 or _is_the_launchers(config) or any(map(config.values.get, _CPU_KEYS)):
            return None
        return f"TrainingArguments refuse {precision} on the CPU without use_cpu"

    def assignments(self, config: UserConfig, change: RecipeChange) -> list[Assignment]:
        """Return the arguments' new values; those that are missing from the file are added."""
        is_newer = any(each.startswith(_CHECKPOINTING_KEYS[0]) for each in config.values)
        missing = {
            KnobName.ACCUMULATION_STEPS: STEPS_KEY,
            KnobName.LEARNING_RATE: _RATE,
            KnobName.ACTIVATION_CHECKPOINTING: _CHECKPOINTING_KEYS[0 if is_newer else 1],
        }
        found = _in_step(config, super().assignments(config, change))
        return [*found, *additions(config, change, missing), *_switches(config, change)]


def _precision(values: Mapping[str, Any]) -> Precision:
    on = (precision for precision, key in _SWITCHES.items() if values.get(key) is True or values.get(key) == "auto")
    return next(on, Precision.FP32)


def _in_step(config: UserConfig, assignments: list[Assignment]) -> list[Assignment]:
    """Keep ``save_steps`` a multiple of ``eval_steps``, which ``load_best_model_at_end`` requires."""
    evaluating = "eval_steps" if "eval_steps" in config.values else "logging_steps"
    before = {key: config.original_value(key, config.values.get(key)) for key in (_SAVING, evaluating)}
    after = {each.key: each.value for each in assignments}
    if not config.values.get("load_best_model_at_end") or not all(key in after for key in before):
        return assignments
    times, rest = divmod(before[_SAVING], before[evaluating])
    if rest:
        return assignments
    return [replace(each, value=times * after[evaluating]) if each.key == _SAVING else each for each in assignments]


def _switches(config: UserConfig, change: RecipeChange) -> list[Assignment]:
    """Turn the wanted precision's switch on and the others off; tf32 stays on with half precision."""
    wanted = change.recipe.precision
    if wanted == config.recipe.precision:
        return []
    found = []
    for precision, key in _SWITCHES.items():
        if precision.is_autocast and _is_the_launchers(config):
            continue
        is_on = bool(config.values.get(key))
        stays = precision is Precision.TF32 and wanted.is_autocast
        if precision == wanted or (is_on and not stays):
            found.append(assigned(change, KnobName.PRECISION, key, precision == wanted))
    return found


def _is_the_launchers(config: UserConfig) -> bool:
    """Whether half precision is set in the launcher's file only, and not in the arguments."""
    switches = (key for precision, key in _SWITCHES.items() if precision.is_autocast)
    return config.is_set_beside(KnobName.PRECISION) and all(config.values.get(each) is None for each in switches)
