"""Lightning's Trainer in a config: its keys, its vocabulary, and the arguments it needs.

Keys and units from Lightning 2.x: ``max_steps`` and ``min_steps`` count optimizer steps; a whole ``val_check_interval``
or ``limit_train_batches`` counts batches, which are forward/backward passes; ``accumulate_grad_batches`` divides the
loss. Lightning 1.x, whose Trainer still had ``gpus``, says 16 where 2.x says ``16-mixed``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from memplan.configs.documents import read_source
from memplan.configs.ecosystems.ecosystem import Ecosystem
from memplan.configs.ecosystems.usual_names import remark_on_lengths
from memplan.configs.keys import contains, followed, get, is_number_of_steps
from memplan.configs.knob_changes import additions, assigned, obstacle_of_single_values
from memplan.configs.languages.spans import line_at
from memplan.configs.precision_words import LIGHTNING_WORDS
from memplan.configs.project_folders import search_path_of
from memplan.configs.user_config import KnobName
from memplan.errors import ConfigError
from memplan.recipe import Precision

if TYPE_CHECKING:
    from pathlib import Path

    from memplan.configs.assignments import Assignment
    from memplan.configs.documents import Document
    from memplan.configs.user_config import KnobKeys, RecipeChange, UserConfig
    from memplan.recipe import Recipe

_NO_RATE = "no learning rate was found under its usual keys; name it with --map learning_rate=KEY"
_NO_FP16 = "Lightning's Trainer runs bf16 in place of fp16 on the CPU"
_OLD_DEVICE_KEYS = ("trainer.gpus", "general.gpus")
_RATES_OF_SCHEDULERS = ("eta_min", "min_lr", "max_lr")
_TRAINER_SIGNS = (
    "accumulate_grad_batches",
    "precision",
    "devices",
    "accelerator",
    "gpus",
    "max_epochs",
    "max_steps",
    "min_epochs",
)
_OLD_WORDS: Mapping[Precision, str | int] = {Precision.FP32: 32, Precision.FP16: 16, Precision.BF16: "bf16"}

_CLASS_KEYS = ("data._target_", "datamodule._target_", "data.class_path", "fit.data.class_path")
_DIVISION = re.compile(r"batch_size\w*\s*//?=?\s*[\w.()\[\]\"']*(?:world_size|num_devices|n_gpus|num_gpus)")


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualKeys:
    """Where projects keep what is not a Trainer argument, the likeliest key first.

    Args:
        batch: keys of the batch size.
        rate: keys of the learning rate.
        checkpointing: keys of activation checkpointing.
        schedulers: sections with absolute floors and peaks of the learning rate.
    """

    batch: tuple[str, ...]
    rate: tuple[str, ...]
    checkpointing: tuple[str, ...]
    schedulers: tuple[str, ...]

    def below(self, prefix: str) -> UsualKeys:
        """Return the keys below a prefix such as ``fit.``."""
        keys = {each.name: getattr(self, each.name) for each in fields(self)}
        return UsualKeys(**{name: tuple(f"{prefix}{each}" for each in found) for name, found in keys.items()})


def has_trainer(values: Any) -> bool:
    """Whether a config has a section of Trainer arguments."""
    trainer = values.get("trainer") if isinstance(values, Mapping) else None
    return isinstance(trainer, Mapping) and any(each in trainer for each in _TRAINER_SIGNS)


class TrainerConfigs(Ecosystem):
    """The common part of configs with a Trainer section: its keys, and the project's usual ones for the rest."""

    usual: UsualKeys

    def prefix_of(self, document: Document) -> str:
        """Return what stands before every key."""
        return ""

    def own_keys(self, document: Document) -> KnobKeys:
        """Return the Trainer's keys that are set, and the first of a project's usual ones; fractions are no counts."""
        values, prefix = document.values, self.prefix_of(document)
        usual = self.usual.below(prefix)
        steps = [f"{prefix}trainer.{name}" for name in ("max_steps", "min_steps")]
        passes = [f"{prefix}trainer.{name}" for name in ("val_check_interval", "limit_train_batches")]
        return {
            KnobName.MICRO_BATCH_SIZE: present(values, usual.batch)[:1],
            KnobName.LEARNING_RATE: present(values, usual.rate)[:1],
            KnobName.ACTIVATION_CHECKPOINTING: present(values, usual.checkpointing)[:1],
            KnobName.MIN_LEARNING_RATE: _absolute_rates(values, usual.schedulers),
            KnobName.PRECISION: present(values, (f"{prefix}trainer.precision",)),
            KnobName.ACCUMULATION_STEPS: present(values, (f"{prefix}trainer.accumulate_grad_batches",)),
            KnobName.OPTIMIZER_STEPS: tuple(key for key in steps if is_number_of_steps(get(values, key))),
            KnobName.ITERATIONS: tuple(key for key in passes if is_number_of_steps(get(values, key))),
        }

    def remarks(self, document: Document, keys: KnobKeys) -> tuple[str, ...]:
        """Return what the config leaves to the code."""
        batch, rate = keys.get(KnobName.MICRO_BATCH_SIZE), keys.get(KnobName.LEARNING_RATE)
        sharing = _sharing_remarks(document, batch[0], self.prefix_of(document)) if batch else ()
        return (*(() if rate else (_NO_RATE,)), *remark_on_lengths(document.values, keys), *sharing)

    def obstacle(self, config: UserConfig, recipe: Recipe) -> str | None:
        """Return which of the project's own keys is missing; the Trainer's can be added."""
        steps = f"{self.prefix_of(config.document)}trainer.accumulate_grad_batches"
        if recipe.accumulation_steps != 1 and isinstance(get(config.values, steps), Mapping):
            return f"{steps} is a schedule by epoch, which memplan leaves as it is"
        names = [KnobName.MICRO_BATCH_SIZE, KnobName.LEARNING_RATE, KnobName.ACTIVATION_CHECKPOINTING]
        if config.knob(KnobName.PRECISION) is not None:
            names.append(KnobName.PRECISION)
        elif recipe.precision not in (config.recipe.precision, *_words(config.values)):
            return f"Lightning's Trainer has no word for {recipe.precision}"
        return obstacle_of_single_values(config, recipe, names=names)

    def obstacle_on_cpu(self, config: UserConfig, precision: Precision) -> str | None:
        """Refuse fp16, in whose place the Trainer runs bf16 (trainer/connectors/accelerator_connector.py)."""
        knob = config.knob(KnobName.PRECISION)
        is_trainers = knob is None or knob.key == f"{self.prefix_of(config.document)}trainer.precision"
        return _NO_FP16 if is_trainers and precision is Precision.FP16 else None

    def assignments(self, config: UserConfig, change: RecipeChange) -> list[Assignment]:
        """Return the knobs' new values, and the Trainer arguments that must be added for the rest."""
        trainer, precision = f"{self.prefix_of(config.document)}trainer", change.recipe.precision
        steps = {KnobName.ACCUMULATION_STEPS: f"{trainer}.accumulate_grad_batches"}
        found = [*super().assignments(config, change), *additions(config, change, steps)]
        if config.knob(KnobName.PRECISION) is None and precision != config.recipe.precision:
            word = _words(config.values)[precision]
            found.append(assigned(change, KnobName.PRECISION, f"{trainer}.precision", word))
        return found


def _sharing_remarks(document: Document, batch_key: str, prefix: str) -> list[str]:
    """Say what is assumed where a batch size may be that of all devices."""
    division = _division_of_batch(document)
    if division is not None:
        shared = f"{division} divides {batch_key} by the number of devices: it is the batch of all of them"
        return [f"{shared}, and figures are those of one device that gets all of it"]
    keys = (f"{prefix}trainer.devices", *_OLD_DEVICE_KEYS)
    devices = next((get(document.values, key) for key in keys if get(document.values, key) is not None), 1)
    if devices in (1, "1", [0]):
        return []
    return [f"{batch_key} is taken as the batch of one device; some data modules divide it by their number"]


def _division_of_batch(document: Document) -> str | None:
    """Return file and line at which the project's data module divides its batch size by the number of devices.

    Its source is read, not run. None where it does not, or where that is not found in the project.
    """
    named = next((each for each in (get(document.values, key) for key in _CLASS_KEYS) if isinstance(each, str)), None)
    path = None if named is None else _source_of(named, document)
    if path is None:
        return None
    try:
        text = read_source(path).text
    except ConfigError:
        return None
    match = _DIVISION.search(text)
    return None if match is None else f"{path.name}:{line_at(text, match.start())}"


def _source_of(class_name: str, document: Document) -> Path | None:
    *module, _ = class_name.split(".")
    folders = [document.path.parent / each for each in search_path_of(document.path)]
    places = [folder.joinpath(*module).with_suffix(".py") for folder in folders if module]
    return next((each for each in places if each.is_file()), None)


def _words(values: Mapping[str, Any]) -> Mapping[Precision, str | int]:
    return _OLD_WORDS if any(contains(values, key) for key in _OLD_DEVICE_KEYS) else LIGHTNING_WORDS


def _absolute_rates(values: Mapping[str, Any], sections: tuple[str, ...]) -> tuple[str, ...]:
    """Return the schedulers' absolute floors and peaks that are numbers of their own."""
    keys = [f"{section}.{name}" for section in sections for name in _RATES_OF_SCHEDULERS]
    return tuple(key for key in keys if isinstance(rate := get(values, key), float) and rate > 0)


def present(values: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys that hold a single value, interpolations followed to it."""
    sources = {key: get(values, followed(values, key)) for key in keys}
    return tuple(key for key, value in sources.items() if isinstance(value, int | float | str) and value != "")
