"""detectron2's LazyConfig: Python files that import other configs and change what they hold.

Keys and defaults from detectron2's ``configs/common`` and ``tools/lazyconfig_train_net.py``: the loader's
``total_batch_size`` is the batch of all cards; ``train.max_iter`` and the periods count iterations; ``lr_multiplier``
works on fractions of ``train.max_iter``, so its milestones stay; there is no accumulation, and mixed precision is fp16.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.configs.assignments import Assignment, ChildForm, child_path_of
from memplan.configs.ecosystems.ecosystem import Ecosystem, torch_loader_keys
from memplan.configs.keys import contains, get, is_number_of_steps
from memplan.configs.knob_changes import assigned, obstacle_of_single_values, single_assignments
from memplan.configs.knobs import keys_in
from memplan.configs.languages.literals import python_word
from memplan.configs.languages.python_style import PythonStyle, style_of
from memplan.configs.languages.registry import PYTHON
from memplan.configs.layout.command_lines import as_pairs
from memplan.configs.layout.comments import MAX_COLUMNS
from memplan.configs.layout.python_child import lazy_child_text
from memplan.configs.user_config import KnobName
from memplan.recipe import Precision

if TYPE_CHECKING:
    from memplan.configs.documents import Document
    from memplan.configs.user_config import KnobKeys, RecipeChange, UserConfig
    from memplan.recipe import Recipe

_TOTAL, _OWN = "dataloader.train.total_batch_size", "dataloader.train.batch_size"
_RATE, _AMP = "optimizer.lr", "train.amp.enabled"
_LENGTHS = ("train.max_iter", "train.eval_period", "train.checkpointer.period")
_PLAIN_NAME = re.compile(r"[A-Za-z]\w*")


class Detectron2Lazy(Ecosystem):
    """detectron2's LazyConfig."""

    name = "detectron2-lazy"
    batch_of_all = _TOTAL
    seems_of_one = True
    loader_keys = torch_loader_keys("dataloader.train.")

    def child_form(self, document: Document) -> ChildForm | None:
        """Import the parent's values in a file beside it; None where its name cannot be imported."""
        if not document.path.stem.isidentifier():
            return None
        head = tuple(_import_of(document))
        return ChildForm(path=child_path_of(document.path), write=lazy_child_text, head=head)

    def override_line(self, assignments: Sequence[Assignment]) -> str | None:
        """Return overrides for the end of the command."""
        return as_pairs(assignments, write=python_word)

    def recognises(self, document: Document) -> bool:
        """Recognise a Python config of that style with a training loader's batch size and the trainer's section."""
        is_lazy = document.language is PYTHON and style_of(document.source.text) is PythonStyle.LAZY_CONFIG
        has_batch = any(contains(document.values, key) for key in (_TOTAL, _OWN))
        return is_lazy and has_batch and isinstance(document.values.get("train"), Mapping)

    def own_keys(self, document: Document) -> KnobKeys:
        """Return the keys of ``configs/common`` that are set."""
        values = document.values
        keys = {
            KnobName.MICRO_BATCH_SIZE: (_TOTAL,) if contains(values, _TOTAL) else (_OWN,),
            KnobName.LEARNING_RATE: (_RATE,),
            KnobName.PRECISION: (_AMP,),
            KnobName.ITERATIONS: tuple(key for key in _LENGTHS if is_number_of_steps(get(values, key))),
        }
        return keys_in(values, keys)

    def remarks(self, document: Document, keys: KnobKeys) -> tuple[str, ...]:
        """Point out a batch that is per card, which is unusual in this ecosystem."""
        return () if contains(document.values, _TOTAL) else (f"{_OWN} is taken as the batch of one card",)

    def obstacle(self, config: UserConfig, recipe: Recipe) -> str | None:
        """Return which part of a recipe detectron2's trainer does not support."""
        names = (KnobName.MICRO_BATCH_SIZE, KnobName.LEARNING_RATE, KnobName.ACTIVATION_CHECKPOINTING)
        if found := obstacle_of_single_values(config, recipe, names=names):
            return found
        if recipe.accumulation_steps != 1:
            return "detectron2's trainer does not accumulate gradients"
        known = (config.recipe.precision, Precision.FP32, Precision.FP16)
        return None if recipe.precision in known else f"{_AMP} has no way to say {recipe.precision}"

    def assignments(self, config: UserConfig, change: RecipeChange) -> list[Assignment]:
        """Return batch, rate, lengths and precision."""
        names = (KnobName.MICRO_BATCH_SIZE, KnobName.LEARNING_RATE, KnobName.ITERATIONS)
        found = [_with_all_cards(each, change.recipe) for each in single_assignments(config, change, names=names)]
        if change.recipe.precision != config.recipe.precision:
            found.append(assigned(change, KnobName.PRECISION, _AMP, change.recipe.precision is Precision.FP16))
        return found


def _with_all_cards(assignment: Assignment, recipe: Recipe) -> Assignment:
    is_total = assignment.key == _TOTAL
    return replace(assignment, value=recipe.micro_batch_size * recipe.world_size) if is_total else assignment


def _import_of(document: Document) -> list[str]:
    """Return the lines that import all of a config's values, and an empty one."""
    configs = (name for name, value in document.values.items() if isinstance(value, Mapping))
    names = [each for each in configs if _PLAIN_NAME.fullmatch(each)]
    line = f"from .{document.path.stem} import {', '.join(names)}"
    if len(line) <= MAX_COLUMNS:
        return [line, ""]
    return [f"from .{document.path.stem} import (", *(f"    {each}," for each in names), ")", ""]
