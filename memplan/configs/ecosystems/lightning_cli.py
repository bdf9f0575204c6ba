"""LightningCLI's YAML: the arguments of Trainer, model and data module, by class or by plain argument.

Of repeated ``--config`` files the later one wins, so a change is written as an overlay beside the config. Keys of a
class given by name are under ``init_args``, those that its signature does not name under ``dict_kwargs``. A file for
several subcommands has the training's keys under ``fit``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memplan.configs.assignments import Assignment, ChildForm, child_path_of
from memplan.configs.ecosystems.ecosystem import torch_loader_keys
from memplan.configs.ecosystems.lightning_trainer import (
    TrainerConfigs,
    UsualKeys,
    has_trainer,
)
from memplan.configs.languages.registry import YAML
from memplan.configs.languages.yaml_source import load_yaml
from memplan.configs.layout.command_lines import as_pairs
from memplan.configs.layout.yaml_child import yaml_child_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memplan.configs.documents import Document
    from memplan.configs.user_config import KnobKeys

_USUAL = UsualKeys(
    batch=(
        "data.init_args.batch_size",
        "data.batch_size",
        "data.init_args.train_batch_size",
        "data.dict_kwargs.batch_size",
    ),
    rate=(
        "optimizer.init_args.lr",
        "optimizer.dict_kwargs.lr",
        "optimizer.lr",
        "model.init_args.optimizer.init_args.lr",
        "model.init_args.lr",
        "model.init_args.learning_rate",
        "model.lr",
        "model.learning_rate",
        "model.dict_kwargs.lr",
        "model.dict_kwargs.learning_rate",
    ),
    checkpointing=("model.init_args.gradient_checkpointing", "model.init_args.activation_checkpointing"),
    schedulers=("lr_scheduler.init_args", "lr_scheduler", "model.init_args.lr_scheduler.init_args"),
)
_SUBCOMMAND = "fit"
_SECTIONS = ("trainer", "data", "model", "optimizer", "lr_scheduler")


class LightningCLI(TrainerConfigs):
    """Files for ``--config`` of a LightningCLI program."""

    name = "lightning-cli"
    is_layered = True
    loader_packages = ("jsonargparse",)
    loader_keys = torch_loader_keys("data.init_args.", "data.")
    usual = _USUAL

    def child_form(self, document: Document) -> ChildForm:
        """Lay a file of changes over the config as the last ``--config``."""
        path = child_path_of(document.path)
        over = tuple(os.path.relpath(each, path.parent) for each in (*document.laid_over, document.path))
        words = " ".join(f"--config {each}" for each in (*over, path.name))
        return ChildForm(path=path, write=yaml_child_text, over=over, notes=(f"use it as {words}",))

    def override_line(self, assignments: Sequence[Assignment]) -> str | None:
        """Return flags, which come after every ``--config``, and after the subcommand they belong to."""
        start = f"{_SUBCOMMAND}."
        if not all(each.key.startswith(start) for each in assignments):
            return as_pairs(assignments, prefix="--")
        pairs = as_pairs([replace(each, key=each.key.removeprefix(start)) for each in assignments], prefix="--")
        return pairs and f"{_SUBCOMMAND} {pairs}"

    def prefix_of(self, document: Document) -> str:
        """Return ``fit.`` where the config is one for all subcommands, else nothing."""
        values = document.values
        is_nested = "trainer" not in values and has_trainer(values.get(_SUBCOMMAND))
        return f"{_SUBCOMMAND}." if is_nested else ""

    def recognises(self, document: Document) -> bool:
        """Recognise YAML with a Trainer's section and classes by ``class_path``, or a seed and no ``_target_``."""
        values = document.values.get(_SUBCOMMAND) if self.prefix_of(document) else document.values
        if document.language is not YAML or not isinstance(values, Mapping):
            return False
        sections = [each for each in (values.get(name) for name in _SECTIONS) if isinstance(each, Mapping)]
        by_class = any("class_path" in each for each in sections)
        by_target = any("_target_" in each for each in sections)
        is_own = by_class or ("seed_everything" in values and not by_target)
        return has_trainer(values) and is_own

    def remarks(self, document: Document, keys: KnobKeys) -> tuple[str, ...]:
        """Return which classes one file changes behind another, and what the config leaves to the code."""
        return (*_remarks_on_classes(document), *super().remarks(document, keys))


def _remarks_on_classes(document: Document) -> list[str]:
    """Point out an overlay that replaces a class, whose arguments need not be the other's."""
    remarks: list[str] = []
    classes: dict[str, Any] = {}
    layers = [each for each in reversed(document.inherited) if each.path in document.laid_over]
    for source in (*layers, document.source):
        own = dict(_class_paths(load_yaml(source.text, where=str(source.path), empty={})))
        changed = [key for key, name in own.items() if classes.get(key, name) != name]
        remarks += [f"{source.path.name} changes {key}: the old class's init_args may not apply" for key in changed]
        classes.update(own)
    return remarks


def _class_paths(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items() if isinstance(values, Mapping) else ():
        if name == "class_path":
            yield f"{prefix}{name}", value
        else:
            yield from _class_paths(value, f"{prefix}{name}.")
