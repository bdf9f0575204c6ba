"""timm's train.py: a flat YAML of its arguments (``-c args.yaml``), as it writes them itself.

From timm 1.0's ``train.py``: ``batch_size`` is that of one card; without ``lr`` the rate is ``lr_base`` scaled with the
global batch over ``lr_base_size``, accumulation included, so it must not be written; lengths are counted in epochs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from memplan.configs.ecosystems.ecosystem import Ecosystem
from memplan.configs.keys import get
from memplan.configs.knob_changes import additions, assigned, obstacle_of_single_values, obstacle_of_switches
from memplan.configs.knobs import declared_recipe
from memplan.configs.languages.registry import SHELL, YAML
from memplan.configs.layout.command_lines import as_switched_flags
from memplan.configs.user_config import KnobName
from memplan.recipe import Precision

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.configs.assignments import Assignment
    from memplan.configs.documents import Document
    from memplan.configs.user_config import KnobKeys, RecipeChange, UserConfig
    from memplan.recipe import Recipe

_DTYPES = {Precision.FP16: "float16", Precision.BF16: "bfloat16"}
_STEPS, _CHECKPOINTING = "grad_accum_steps", "grad_checkpointing"
_SIGNS = ("opt", "sched", "lr_base", "warmup_lr", "model_ema", "reprob", "drop_path", "smoothing", "amp_dtype", _STEPS)


class Timm(Ecosystem):
    """Arguments of timm's train.py."""

    name = "timm"
    loader_keys: ClassVar[KnobKeys] = {KnobName.LOADER_WORKERS: ("workers",), KnobName.PIN_MEMORY: ("pin_mem",)}

    def override_line(self, assignments: Sequence[Assignment]) -> str | None:
        """Return flags of train.py; what it can only switch on cannot be switched off there."""
        return as_switched_flags(assignments, dashed=True)

    def recognises(self, document: Document) -> bool:
        """Recognise a flat YAML file with a batch size, a model's name, and two arguments of timm's own."""
        values = document.values
        named = isinstance(values.get("model"), str) and "batch_size" in values
        return document.language in (YAML, SHELL) and named and sum(each in values for each in _SIGNS) >= 2

    def own_keys(self, document: Document) -> KnobKeys:
        """Return the arguments that are set; a rate that timm chooses itself is none."""
        values = document.values
        keys = {
            KnobName.MICRO_BATCH_SIZE: ("batch_size",),
            KnobName.ACCUMULATION_STEPS: (_STEPS,),
            KnobName.LEARNING_RATE: ("lr",),
            KnobName.MIN_LEARNING_RATE: ("min_lr", "warmup_lr") if values.get("lr") is not None else (),
            KnobName.ACTIVATION_CHECKPOINTING: (_CHECKPOINTING,),
        }
        return {name: tuple(each for each in found if get(values, each)) for name, found in keys.items()}

    def recipe(self, document: Document, keys: KnobKeys) -> Recipe:
        """Read the recipe, with timm's defaults where the file is silent."""
        is_half = document.values.get("amp_dtype") == _DTYPES[Precision.BF16]
        autocast = Precision.BF16 if is_half else Precision.FP16
        return declared_recipe(document, keys, precision=autocast if document.values.get("amp") else Precision.FP32)

    def remarks(self, document: Document, keys: KnobKeys) -> tuple[str, ...]:
        """Say who sets the learning rate where the file does not."""
        if document.values.get("lr") is not None:
            return ()
        return ("lr is unset: timm scales lr_base with the global batch itself, so no learning rate is written",)

    def obstacle(self, config: UserConfig, recipe: Recipe) -> str | None:
        """Return which part of a recipe train.py has no argument for."""
        if found := obstacle_of_single_values(config, recipe, names=()) or obstacle_of_switches(config, recipe):
            return found
        if recipe.precision not in (config.recipe.precision, Precision.FP32, *_DTYPES):
            return f"timm's train.py has no argument for {recipe.precision}"
        if config.document.language is SHELL and config.recipe.precision in _DTYPES and recipe.precision not in _DTYPES:
            return "--amp is a switch, which a value cannot turn off"
        return None

    def assignments(self, config: UserConfig, change: RecipeChange) -> list[Assignment]:
        """Return the arguments' new values; those that are missing from the file are added."""
        missing = {KnobName.ACCUMULATION_STEPS: _STEPS, KnobName.ACTIVATION_CHECKPOINTING: _CHECKPOINTING}
        found = [*super().assignments(config, change), *additions(config, change, missing)]
        precision = change.recipe.precision
        if precision != config.recipe.precision:
            found.append(assigned(change, KnobName.PRECISION, "amp", precision in _DTYPES))
            if precision in _DTYPES:
                found.append(assigned(change, KnobName.PRECISION, "amp_dtype", _DTYPES[precision]))
        return found
