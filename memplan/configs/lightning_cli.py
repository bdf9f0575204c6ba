"""LightningCLI's YAML: the arguments of Trainer, model and data module, by class or by plain argument.

Of repeated ``--config`` files the later one wins, so a change is written as an overlay beside the config. Keys of a
class given by name stand under ``init_args``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from memplan.configs.child_file import child_path_of
from memplan.configs.child_yaml import yaml_child_text
from memplan.configs.command_lines import as_pairs
from memplan.configs.ecosystem import Assignment, ChildForm
from memplan.configs.knobs import declared_accumulation, declared_precision, recipe_from
from memplan.configs.lightning import (
    absolute_rates,
    has_trainer,
    present,
    trainer_assignments,
    trainer_keys,
    trainer_obstacle,
)
from memplan.configs.syntaxes import YAML
from memplan.configs.user_config import KnobName, PatchStyle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.configs.documents import Document
    from memplan.configs.ecosystem import KnobKeys
    from memplan.configs.user_config import RecipeChange, UserConfig
    from memplan.recipe import Recipe

_BATCH_KEYS = ("data.init_args.batch_size", "data.batch_size", "data.init_args.train_batch_size")
_RATE_KEYS = (
    "optimizer.init_args.lr",
    "optimizer.lr",
    "model.init_args.optimizer.init_args.lr",
    "model.init_args.lr",
    "model.init_args.learning_rate",
    "model.lr",
    "model.learning_rate",
)
_SCHEDULERS = ("lr_scheduler.init_args", "lr_scheduler", "model.init_args.lr_scheduler.init_args")
_CHECKPOINTING_KEYS = ("model.init_args.gradient_checkpointing", "model.init_args.activation_checkpointing")
_SECTIONS = ("trainer", "data", "model", "optimizer", "lr_scheduler")


class LightningCLI:
    """Files for ``--config`` of a LightningCLI program."""

    name = "lightning-cli"
    loader_package = None
    styles = (PatchStyle.CHILD, PatchStyle.IN_PLACE)

    def child_form(self, document: Document) -> ChildForm:
        """Lay a file of changes over the config as a second ``--config``."""
        path = child_path_of(document.path)
        return ChildForm(
            path=path,
            head=(),
            over=document.path.name,
            write=yaml_child_text,
            notes=(f"use it as --config {document.path.name} --config {path.name}",),
        )

    def override_line(self, assignments: Sequence[Assignment]) -> str | None:
        """Return flags, which come after every ``--config``."""
        return as_pairs(assignments, prefix="--")

    def recognises(self, document: Document) -> bool:
        """See YAML with a Trainer's section and classes by ``class_path``, or a seed and no ``_target_``."""
        values = document.values
        sections = [each for each in (values.get(name) for name in _SECTIONS) if isinstance(each, Mapping)]
        by_class = any("class_path" in each for each in sections)
        by_target = any("_target_" in each for each in sections)
        is_own = by_class or ("seed_everything" in values and not by_target)
        return document.syntax is YAML and has_trainer(values) and is_own

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
        """Return what the config leaves to the code."""
        if present(document.values, _RATE_KEYS):
            return ()
        return ("no learning rate was found under its usual keys; name it with --map learning_rate=KEY",)

    def obstacle(self, config: UserConfig, recipe: Recipe) -> str | None:
        """Return what the project's keys cannot say."""
        return trainer_obstacle(config, recipe)

    def assignments(self, config: UserConfig, change: RecipeChange) -> list[Assignment]:
        """Return the new values; the Trainer's arguments that are missing are added."""
        return trainer_assignments(config, change)
