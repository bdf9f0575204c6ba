"""Lightning's Trainer configured by Hydra or OmegaConf YAML.

Keys and units from Lightning 2.x: ``max_steps`` and ``min_steps`` count optimizer steps; a whole ``val_check_interval``
or ``limit_train_batches`` counts batches, which are forward/backward passes; ``accumulate_grad_batches`` divides the
loss. The batch size and the learning rate are the project's own keys, so the usual ones are looked for in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memplan.configs.child_yaml import yaml_child_text
from memplan.configs.command_lines import as_pairs
from memplan.configs.ecosystem import Assignment, ChildForm
from memplan.configs.hydra_defaults import experiment_override, has_defaults
from memplan.configs.keys import followed, get
from memplan.configs.knobs import (
    declared_accumulation,
    declared_precision,
    obstacle_of_single_values,
    reason_for,
    recipe_from,
    single_assignments,
)
from memplan.configs.marker import has_marker
from memplan.configs.syntaxes import YAML
from memplan.configs.user_config import KnobName, PatchStyle
from memplan.configs.yaml_source import load_yaml
from memplan.recipe import Precision

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.configs.documents import Document
    from memplan.configs.ecosystem import KnobKeys
    from memplan.configs.user_config import RecipeChange, UserConfig
    from memplan.recipe import Recipe

_EXPERIMENT = "memplan"
_BATCH_KEYS = (
    "data.batch_size",
    "datamodule.batch_size",
    "task.data.batch_size",
    "data.datamodule.batch_size",
    "data.train_dataloader.batch_size",
    "dataset.batch_size",
    "dataloader.batch_size",
    "train.batch_size",
    "training.batch_size",
    "general.batch_size",
    "batch_size",
)
_RATE_KEYS = (
    "model.optimizer.lr",
    "optimizer.lr",
    "optim.lr",
    "model.optim.lr",
    "model.lr",
    "model.learning_rate",
    "train.lr",
    "training.lr",
    "training.learning_rate",
    "general.lr",
    "lr",
    "learning_rate",
)
_SCHEDULERS = ("scheduler", "scheduler.scheduler", "lr_scheduler", "model.scheduler", "model.lr_scheduler")
_RATES_OF_SCHEDULERS = ("eta_min", "min_lr", "max_lr")
_CHECKPOINTING_KEYS = ("model.activation_checkpointing", "model.gradient_checkpointing")
_DEVICE_KEYS = ("trainer.devices", "trainer.gpus", "general.gpus")
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
_WORDS = {
    Precision.FP32: "32-true",
    Precision.FP16: "16-mixed",
    Precision.BF16: "bf16-mixed",
    Precision.FP16_TRUE: "16-true",
    Precision.BF16_TRUE: "bf16-true",
}


class LightningHydra:
    """Lightning projects configured by Hydra or OmegaConf."""

    name = "lightning-hydra"
    loader_package = "omegaconf"
    styles = (PatchStyle.CHILD, PatchStyle.IN_PLACE)

    def child_form(self, document: Document) -> ChildForm | None:
        """Write ``experiment/memplan.yaml`` for a tree of configs; a single file has no children."""
        values = load_yaml(document.source.text, where=str(document.path), empty={})
        if not isinstance(values, Mapping) or not has_defaults(values) or _is_experiment(document):
            return None
        use = f"use it with {experiment_override(values, _EXPERIMENT)}, after any other experiment"
        return ChildForm(
            path=document.path.parent / "experiment" / f"{_EXPERIMENT}.yaml",
            head=("# @package _global_",),
            over=f"../{document.path.name}",
            write=yaml_child_text,
            notes=(use,),
        )

    def override_line(self, assignments: Sequence[Assignment]) -> str | None:
        """Return Hydra's overrides, ``++`` for keys that are there as well as for new ones."""
        return as_pairs(assignments, prefix="++")

    def recognises(self, document: Document) -> bool:
        """See YAML with a Trainer's section, or with the number of cards under ``general``, and a batch size."""
        values = document.values
        is_known = has_trainer(values) or (isinstance(values.get("general"), Mapping) and "gpus" in values["general"])
        return document.syntax is YAML and is_known and bool(present(values, _BATCH_KEYS))

    def own_keys(self, document: Document) -> KnobKeys:
        """Return the Trainer's keys, and the first of the usual keys for batch size and learning rate."""
        values = document.values
        return {
            KnobName.MICRO_BATCH_SIZE: present(values, _BATCH_KEYS)[:1],
            KnobName.LEARNING_RATE: present(values, _RATE_KEYS)[:1],
            KnobName.ACTIVATION_CHECKPOINTING: present(values, _CHECKPOINTING_KEYS)[:1],
            KnobName.MIN_LEARNING_RATE: absolute_rates(values, _SCHEDULERS),
            **trainer_keys(values),
        }

    def recipe(self, document: Document, keys: KnobKeys) -> Recipe:
        """Read the recipe, with the Trainer's defaults where the config is silent."""
        return recipe_from(
            document,
            keys,
            precision=declared_precision(document, keys),
            accumulation_steps=declared_accumulation(document, keys),
        )

    def remarks(self, document: Document) -> tuple[str, ...]:
        """Return which batch size was taken, and what else could be meant by it."""
        values = document.values
        if _is_experiment(document):
            return ("this is an experiment, read without the config it is laid over: name that one instead",)
        sources = dict.fromkeys(followed(values, key) for key in present(values, _BATCH_KEYS))
        taken, *others = [*sources, ""]
        found = [f"{taken} is taken as the batch size; {each} is left alone" for each in others if each]
        if not present(values, _RATE_KEYS):
            found.append("no learning rate was found under its usual keys; name it with --map learning_rate=KEY")
        devices = next((get(values, key) for key in _DEVICE_KEYS if get(values, key) is not None), 1)
        if devices not in (1, "1", [0]):
            found.append(f"{taken} is taken as the batch of one device; some data modules divide it by their number")
        return tuple(found)

    def obstacle(self, config: UserConfig, recipe: Recipe) -> str | None:
        """Return what the project's keys cannot say."""
        return trainer_obstacle(config, recipe)

    def assignments(self, config: UserConfig, change: RecipeChange) -> list[Assignment]:
        """Return the new values; the Trainer's arguments that are missing are added."""
        return trainer_assignments(config, change)


def _is_experiment(document: Document) -> bool:
    """Say whether a file is one of a Hydra tree's experiments, and not memplan's, which knows what it is laid over."""
    return document.path.parent.name == "experiment" and not has_marker(document.source.text)


def has_trainer(values: Mapping[str, Any]) -> bool:
    """Say whether a config has a section of Trainer arguments."""
    trainer = values.get("trainer")
    return isinstance(trainer, Mapping) and any(each in trainer for each in _TRAINER_SIGNS)


def trainer_keys(values: Mapping[str, Any]) -> KnobKeys:
    """Return the Trainer's own keys that are set; fractions of an epoch are no counts."""
    counts = {name: get(values, f"trainer.{name}") for name in ("max_steps", "min_steps")}
    passes = {name: get(values, f"trainer.{name}") for name in ("val_check_interval", "limit_train_batches")}
    return {
        KnobName.PRECISION: present(values, ("trainer.precision",)),
        KnobName.ACCUMULATION_STEPS: present(values, ("trainer.accumulate_grad_batches",)),
        KnobName.OPTIMIZER_STEPS: tuple(f"trainer.{name}" for name, value in counts.items() if _is_count(value)),
        KnobName.ITERATIONS: tuple(f"trainer.{name}" for name, value in passes.items() if _is_count(value)),
    }


def trainer_obstacle(config: UserConfig, recipe: Recipe) -> str | None:
    """Return which of the project's own keys is missing; the Trainer's can be added."""
    if recipe.accumulation_steps != 1 and isinstance(get(config.values, "trainer.accumulate_grad_batches"), Mapping):
        return "trainer.accumulate_grad_batches is a schedule by epoch, which memplan leaves as it is"
    names = [KnobName.MICRO_BATCH_SIZE, KnobName.LEARNING_RATE, KnobName.ACTIVATION_CHECKPOINTING]
    if config.knob(KnobName.PRECISION) is not None:
        names.append(KnobName.PRECISION)
    elif recipe.precision not in (config.recipe.precision, *_WORDS):
        return f"Lightning's Trainer has no word for {recipe.precision}"
    return obstacle_of_single_values(config, recipe, names=names)


def trainer_assignments(config: UserConfig, change: RecipeChange) -> list[Assignment]:
    """Return the knobs' new values, and the Trainer's arguments that must be added to say the rest."""
    found = single_assignments(config, change, names=tuple(KnobName))
    steps, precision = change.recipe.accumulation_steps, change.recipe.precision
    if config.knob(KnobName.ACCUMULATION_STEPS) is None and steps > 1:
        reason = reason_for(change, KnobName.ACCUMULATION_STEPS)
        found.append(Assignment(key="trainer.accumulate_grad_batches", value=steps, reason=reason))
    if config.knob(KnobName.PRECISION) is None and precision != config.recipe.precision:
        reason = reason_for(change, KnobName.PRECISION)
        found.append(Assignment(key="trainer.precision", value=_WORDS[precision], reason=reason))
    return found


def absolute_rates(values: Mapping[str, Any], sections: tuple[str, ...]) -> tuple[str, ...]:
    """Return the schedulers' absolute floors and peaks that are numbers of their own."""
    keys = [f"{section}.{name}" for section in sections for name in _RATES_OF_SCHEDULERS]
    return tuple(key for key in keys if _is_rate(get(values, key)))


def present(values: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys that hold a single value, interpolations followed to it."""
    sources = {key: get(values, followed(values, key)) for key in keys}
    return tuple(key for key, value in sources.items() if isinstance(value, int | float | str) and value != "")


def _is_rate(value: Any) -> bool:
    """Say whether a value is a positive float, also one that YAML 1.1 reads as text (``1e-6``)."""
    try:
        return not isinstance(value, bool | int) and float(value) > 0
    except (TypeError, ValueError):
        return False


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
