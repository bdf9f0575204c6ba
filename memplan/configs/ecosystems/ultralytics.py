"""Ultralytics' flat training YAML.

From ultralytics 8.4's trainer: ``batch`` is the batch of all devices; accumulation is ``max(round(nbs / batch), 1)``;
the loss is multiplied by the batch instead of averaged, so gradients grow with it by themselves, and ``lr0`` is
ignored under ``optimizer: auto``: the learning rate is never written. Lengths are counted in epochs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from memplan.configs.ecosystems.ecosystem import Ecosystem
from memplan.configs.knob_changes import assigned, obstacle_of_single_values
from memplan.configs.knobs import count_at
from memplan.configs.languages.literals import python_word
from memplan.configs.languages.registry import YAML
from memplan.configs.layout.command_lines import as_pairs
from memplan.configs.user_config import KnobName
from memplan.errors import ConfigError
from memplan.recipe import Precision, Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan.configs.assignments import Assignment
    from memplan.configs.documents import Document
    from memplan.configs.user_config import KnobKeys, RecipeChange, UserConfig

_NOMINAL_BATCH_SIZE = 64  # the default of nbs
_BATCH, _NOMINAL, _AMP = "batch", "nbs", "amp"
_WORDS: dict[Precision, Any] = {Precision.FP32: False, Precision.FP16: True, Precision.BF16: "bf16"}
_SIGNS = ("imgsz", "lr0", "lrf", _NOMINAL, "mosaic", "close_mosaic", "task", "mode", "warmup_epochs", "hsv_h", "dfl")


class Ultralytics(Ecosystem):
    """Ultralytics' training arguments."""

    name = "ultralytics"
    batch_of_all = _BATCH
    keys: ClassVar[KnobKeys] = {KnobName.MICRO_BATCH_SIZE: (_BATCH,), KnobName.PRECISION: (_AMP,)}
    loader_keys: ClassVar[KnobKeys] = {KnobName.LOADER_WORKERS: ("workers",)}

    def override_line(self, assignments: Sequence[Assignment]) -> str | None:
        """Return ``key=value`` words of ``yolo``."""
        return as_pairs(assignments, write=python_word)

    def recognises(self, document: Document) -> bool:
        """Recognise a flat YAML file with ``batch`` and two arguments of Ultralytics' own."""
        values = document.values
        return document.language is YAML and _BATCH in values and sum(each in values for each in _SIGNS) >= 2

    def recipe(self, document: Document, keys: KnobKeys) -> Recipe:
        """Share the batch among the devices, and derive accumulation as the trainer does.

        Raises:
            ConfigError: the devices cannot share it evenly.
        """
        batch, devices = count_at(document, _BATCH), _devices(document.values)
        if document.values.get(_NOMINAL) is not None:
            count_at(document, _NOMINAL)
        if batch % devices:
            raise ConfigError(f"batch={batch} cannot be shared by {devices} devices", where=str(document.path))
        return Recipe(
            micro_batch_size=batch // devices,
            accumulation_steps=_accumulation(document.values, batch),
            precision=_precision(document.values),
            world_size=devices,
        )

    def remarks(self, document: Document, keys: KnobKeys) -> tuple[str, ...]:
        """Say why the learning rate is left alone."""
        return (
            "Ultralytics multiplies its loss with the batch, so learning rates are left alone",
            "accumulation follows from nbs and batch; nbs is changed where that gives another one",
        )

    def obstacle(self, config: UserConfig, recipe: Recipe) -> str | None:
        """Return why these arguments cannot express a recipe."""
        if found := obstacle_of_single_values(config, recipe, names=()):
            return found
        if recipe.activation_checkpointing:
            return "Ultralytics has no activation checkpointing"
        return None if recipe.precision in _WORDS else f"amp has no way to say {recipe.precision}"

    def obstacle_on_cpu(self, config: UserConfig, precision: Precision) -> str | None:
        """Refuse autocast: ``check_amp`` of ``utils/checks.py`` says no to the CPU, and bf16 asks for CUDA there."""
        return None if precision is Precision.FP32 else "Ultralytics trains in fp32 on the CPU, whatever amp says"

    def assignments(self, config: UserConfig, change: RecipeChange) -> list[Assignment]:
        """Return the batch of all devices, mixed precision, and ``nbs`` where accumulation needs another one."""
        recipe, batch = change.recipe, change.recipe.micro_batch_size * change.recipe.world_size
        found = [assigned(change, KnobName.MICRO_BATCH_SIZE, _BATCH, batch)]
        if recipe.precision != config.recipe.precision:
            found.append(assigned(change, KnobName.PRECISION, _AMP, _WORDS[recipe.precision]))
        original = config.original_value(_NOMINAL, config.values.get(_NOMINAL)) or _NOMINAL_BATCH_SIZE
        derived = _accumulation({_NOMINAL: original}, batch)
        nominal = original if derived == recipe.accumulation_steps else batch * recipe.accumulation_steps
        if nominal != config.values.get(_NOMINAL, _NOMINAL_BATCH_SIZE):
            found.append(assigned(change, KnobName.ACCUMULATION_STEPS, _NOMINAL, nominal))
        return found


def _devices(values: Mapping[str, Any]) -> int:
    named = values.get("device")
    listed = named.split(",") if isinstance(named, str) else named if isinstance(named, list) else [named]
    return max(1, len(listed))


def _accumulation(values: Mapping[str, Any], batch: int) -> int:
    nominal = values.get(_NOMINAL) or _NOMINAL_BATCH_SIZE
    return max(round(nominal / batch), 1)


def _precision(values: Mapping[str, Any]) -> Precision:
    said = values.get(_AMP, True)
    return next((precision for precision, word in _WORDS.items() if word == said), Precision.FP16)
