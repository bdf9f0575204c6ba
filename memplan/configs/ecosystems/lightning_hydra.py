"""Lightning projects configured by Hydra or OmegaConf YAML.

The batch size and the learning rate are the project's own keys, so the usual ones are looked for in order.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from memplan.configs.assignments import Assignment, ChildForm
from memplan.configs.ecosystems.ecosystem import torch_loader_keys
from memplan.configs.ecosystems.lightning_trainer import (
    TrainerConfigs,
    UsualKeys,
    has_trainer,
    present,
)
from memplan.configs.evaluation.hydra_defaults import choices_on_command_line, override_words, primary_values
from memplan.configs.keys import followed
from memplan.configs.languages.registry import YAML
from memplan.configs.layout.command_lines import as_pairs
from memplan.configs.layout.yaml_child import yaml_child_text
from memplan.configs.originals import has_marker
from memplan.configs.user_config import KnobName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.configs.documents import Document
    from memplan.configs.user_config import KnobKeys

_EXPERIMENT = "memplan"
_EXPERIMENTS = "experiment"
_USUAL = UsualKeys(
    batch=(
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
    ),
    rate=(
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
    ),
    checkpointing=("model.activation_checkpointing", "model.gradient_checkpointing"),
    schedulers=("scheduler", "scheduler.scheduler", "lr_scheduler", "model.scheduler", "model.lr_scheduler"),
)


class LightningHydra(TrainerConfigs):
    """Lightning projects configured by Hydra or OmegaConf."""

    name = "lightning-hydra"
    loader_packages = ("omegaconf",)
    loader_keys = torch_loader_keys("data.", "datamodule.", "dataloader.", "data.datamodule.")
    usual = _USUAL

    def child_form(self, document: Document) -> ChildForm | None:
        """Write ``experiment/memplan.yaml`` for a tree of configs; a single file has no children."""
        files, values = (*document.laid_over, document.path), primary_values(document.primary)
        if values is None or _is_experiment(document):
            return None
        path = files[0].parent / _EXPERIMENTS / f"{_EXPERIMENT}.yaml"
        words = override_words(values, choices_on_command_line(files[0].parent, files[1:]), overlay=_EXPERIMENT)
        return ChildForm(
            path=path,
            head=("# @package _global_",),
            over=tuple(os.path.relpath(each, path.parent) for each in files),
            write=yaml_child_text,
            notes=(f"use it with {words}" if files[1:] else f"use it with {words}, after any other experiment",),
        )

    def override_line(self, assignments: Sequence[Assignment]) -> str | None:
        """Return Hydra's overrides, ``++`` for keys that are there as well as for new ones."""
        return as_pairs(assignments, prefix="++")

    def recognises(self, document: Document) -> bool:
        """Recognise YAML with a Trainer's section, or with the number of cards under ``general``, and a batch size."""
        values = document.values
        is_known = has_trainer(values) or (isinstance(values.get("general"), Mapping) and "gpus" in values["general"])
        return document.language is YAML and is_known and bool(present(values, _USUAL.batch))

    def remarks(self, document: Document, keys: KnobKeys) -> tuple[str, ...]:
        """Return which batch size was taken, and what else could be meant by it."""
        values = document.values
        if _is_experiment(document):
            return (
                "this is an experiment, read without the config it is laid over: name that one first, then this one",
            )
        batch = keys.get(KnobName.MICRO_BATCH_SIZE, ())
        others = dict.fromkeys(followed(values, key) for key in present(values, _USUAL.batch))
        found = [f"{batch[0]} is taken as the batch size; {each} is left alone" for each in others if each not in batch]
        return (*found, *super().remarks(document, keys))


def _is_experiment(document: Document) -> bool:
    """Whether a file is one of a Hydra tree's own experiments, named without the config that it is laid over."""
    is_alone = not document.laid_over and not has_marker(document.source.text)
    return is_alone and document.path.parent.name == _EXPERIMENTS
