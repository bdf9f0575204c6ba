"""Swin Transformer's yacs configs, and those of its many descendants.

Keys and defaults from Swin-Transformer's ``config.py`` and ``main.py``: ``DATA.BATCH_SIZE`` is per device; the script
scales ``TRAIN.BASE_LR``, ``WARMUP_LR`` and ``MIN_LR`` with the global batch, accumulation included, so no rate is
written; lengths count epochs; ``AMP_ENABLE`` is fp16, and on where it is not set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.configs.ecosystems.ecosystem import Ecosystem
from memplan.configs.keys import contains, get
from memplan.configs.knob_changes import additions, assigned, obstacle_of_single_values
from memplan.configs.knobs import declared_recipe, keys_in
from memplan.configs.languages.registry import YAML
from memplan.configs.user_config import KnobName
from memplan.recipe import Precision

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.configs.assignments import Assignment
    from memplan.configs.documents import Document
    from memplan.configs.user_config import KnobKeys, RecipeChange, UserConfig
    from memplan.recipe import Recipe

_BATCH, _STEPS, _AMP = "DATA.BATCH_SIZE", "TRAIN.ACCUMULATION_STEPS", "AMP_ENABLE"
_CHECKPOINTING = "TRAIN.USE_CHECKPOINT"
_SCALED = ("TRAIN.BASE_LR", "TRAIN.WARMUP_LR", "TRAIN.MIN_LR")


class Swin(Ecosystem):
    """Swin Transformer's yacs configs."""

    name = "swin"

    def override_line(self, assignments: Sequence[Assignment]) -> str | None:
        """Return ``KEY VALUE`` words for the script's ``--opts``."""
        return f"--opts {' '.join(f'{each.key} {each.value}' for each in assignments)}"

    def recognises(self, document: Document) -> bool:
        """Recognise YAML with Swin's batch size and a model's type or a section for training."""
        values = document.values
        has_rest = contains(values, "MODEL.TYPE") or contains(values, "TRAIN.BASE_LR")
        return document.language is YAML and contains(values, _BATCH) and has_rest

    def own_keys(self, document: Document) -> KnobKeys:
        """Return the keys that affect a step."""
        keys = {
            KnobName.MICRO_BATCH_SIZE: (_BATCH,),
            KnobName.ACCUMULATION_STEPS: (_STEPS,) if get(document.values, _STEPS) else (),
            KnobName.ACTIVATION_CHECKPOINTING: (_CHECKPOINTING,),
        }
        return keys_in(document.values, keys)

    def recipe(self, document: Document, keys: KnobKeys) -> Recipe:
        """Read the recipe; the rate is the script's.

        Raises:
            ConfigError: the batch size is not a whole number of at least 1.
        """
        is_half = get(document.values, _AMP) is not False
        return declared_recipe(document, keys, precision=Precision.FP16 if is_half else Precision.FP32)

    def remarks(self, document: Document, keys: KnobKeys) -> tuple[str, ...]:
        """Say what the script scales itself, and what is taken from its defaults."""
        rates = ", ".join(each for each in _SCALED if contains(document.values, each)) or "TRAIN.BASE_LR"
        found = [f"the script scales {rates} with the global batch itself, so no rate is written"]
        if not contains(document.values, _AMP):
            found.append(f"{_AMP} is not set, which is fp16 by the script's default")
        return tuple(found)

    def obstacle(self, config: UserConfig, recipe: Recipe) -> str | None:
        """Return which part of a recipe the script has no key for."""
        if recipe.precision not in (Precision.FP32, Precision.FP16):
            return f"{_AMP} has no way to say {recipe.precision}"
        return obstacle_of_single_values(config, recipe, names=(KnobName.MICRO_BATCH_SIZE,))

    def assignments(self, config: UserConfig, change: RecipeChange) -> list[Assignment]:
        """Return batch, accumulation, checkpointing and precision."""
        is_half = change.recipe.precision is Precision.FP16
        missing = {KnobName.ACCUMULATION_STEPS: _STEPS, KnobName.ACTIVATION_CHECKPOINTING: _CHECKPOINTING}
        found = [*super().assignments(config, change), *additions(config, change, missing)]
        if config.knob(KnobName.PRECISION) is None and is_half != (config.recipe.precision is Precision.FP16):
            found.append(assigned(change, KnobName.PRECISION, _AMP, is_half))
        return found
