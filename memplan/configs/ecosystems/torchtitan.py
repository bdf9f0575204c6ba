"""torchtitan's TOML, up to version 0.2.2; later versions are configured in Python.

From torchtitan 0.2's job config: ``training.local_batch_size`` is that of one device; accumulation follows from
``training.global_batch_size``, where -1 or none means no accumulation; lengths count optimizer steps; parameters are
cast to ``training.mixed_precision_param`` under FSDP, ``training.dtype`` is the type of the weights.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from memplan.configs.ecosystems.ecosystem import Ecosystem
from memplan.configs.keys import contains, get
from memplan.configs.knob_changes import assigned, obstacle_of_single_values
from memplan.configs.knobs import count_at, declared_recipe
from memplan.configs.languages.literals import python_word
from memplan.configs.languages.registry import TOML
from memplan.configs.layout.command_lines import as_pairs
from memplan.configs.user_config import KnobName
from memplan.errors import ConfigError
from memplan.recipe import Precision

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan.configs.assignments import Assignment
    from memplan.configs.documents import Document
    from memplan.configs.user_config import KnobKeys, RecipeChange, UserConfig
    from memplan.recipe import Recipe

_MICRO, _GLOBAL, _RATE = "training.local_batch_size", "training.global_batch_size", "optimizer.lr"
_LENGTHS = ("training.steps", "lr_scheduler.warmup_steps", "lr_scheduler.decay_steps", "checkpoint.interval")
_PARAM, _DTYPE, _MODE = "training.mixed_precision_param", "training.dtype", "activation_checkpoint.mode"
_SHARDS = ("parallelism.data_parallel_replicate_degree", "parallelism.data_parallel_shard_degree")
_WORDS = {Precision.BF16: "bfloat16", Precision.FP32: "float32"}


class TorchTitan(Ecosystem):
    """torchtitan's training files."""

    name = "torchtitan"
    batch_of_all = _GLOBAL
    keys: ClassVar[KnobKeys] = {
        KnobName.MICRO_BATCH_SIZE: (_MICRO,),
        KnobName.LEARNING_RATE: (_RATE,),
        KnobName.OPTIMIZER_STEPS: _LENGTHS,
    }

    def override_line(self, assignments: Sequence[Assignment]) -> str | None:
        """Return flags, which come after the file."""
        return as_pairs(assignments, prefix="--", write=python_word)

    def recognises(self, document: Document) -> bool:
        """Recognise TOML with torchtitan's batch size, or its model and number of steps."""
        has_steps = contains(document.values, "training.steps") and contains(document.values, "model.flavor")
        return document.language is TOML and (contains(document.values, _MICRO) or has_steps)

    def recipe(self, document: Document, keys: KnobKeys) -> Recipe:
        """Read the recipe; accumulation follows from the global batch and the replicas the file spells out.

        Raises:
            ConfigError: there is no batch size, or the global batch is no multiple of it.
        """
        if not keys.get(KnobName.MICRO_BATCH_SIZE):
            raise ConfigError(f"the config sets no {_MICRO}", where=str(document.path), hint="write it into the file")
        values, found = document.values, declared_recipe(document, keys, precision=_precision(document.values))
        micro, total, replicas = found.micro_batch_size, get(values, _GLOBAL) or -1, _replicas(values)
        steps, rest = (1, 0) if total == -1 else divmod(count_at(document, _GLOBAL), micro * replicas)
        if rest or steps < 1:
            what = f"{_GLOBAL}={total} is no multiple of {micro} samples on {replicas} replicas"
            raise ConfigError(what, where=str(document.path))
        is_full = get(values, _MODE) == "full"
        return replace(found, accumulation_steps=steps, activation_checkpointing=is_full, world_size=replicas)

    def remarks(self, document: Document, keys: KnobKeys) -> tuple[str, ...]:
        """Point out selective activation checkpointing."""
        if get(document.values, _MODE) == "selective":
            return (f"{_MODE} is selective, which memplan leaves as it is",)
        return ()

    def obstacle(self, config: UserConfig, recipe: Recipe) -> str | None:
        """Return why these files cannot express a recipe."""
        if found := obstacle_of_single_values(config, recipe, names=(KnobName.LEARNING_RATE,)):
            return found
        if recipe.activation_checkpointing != config.recipe.activation_checkpointing and not get(config.values, _MODE):
            return f"the config has no {_MODE}"
        known = (config.recipe.precision, *_WORDS)
        return None if recipe.precision in known else f"torchtitan has no word for {recipe.precision}"

    def assignments(self, config: UserConfig, change: RecipeChange) -> list[Assignment]:
        """Return the new values; the global batch where the file holds one, or accumulation needs it."""
        recipe = change.recipe
        found = super().assignments(config, change)
        if recipe.accumulation_steps > 1 or get(config.values, _GLOBAL) not in (None, -1):
            found.append(assigned(change, KnobName.ACCUMULATION_STEPS, _GLOBAL, recipe.global_batch_size))
        if recipe.precision != config.recipe.precision:
            found.append(assigned(change, KnobName.PRECISION, _PARAM, _WORDS[recipe.precision]))
            if config.recipe.precision is Precision.BF16_TRUE:
                found.append(assigned(change, KnobName.PRECISION, _DTYPE, _WORDS[Precision.FP32]))
        if recipe.activation_checkpointing != config.recipe.activation_checkpointing:
            mode = "full" if recipe.activation_checkpointing else "none"
            found.append(assigned(change, KnobName.ACTIVATION_CHECKPOINTING, _MODE, mode))
        return found


def _replicas(values: Mapping[str, Any]) -> int:
    """Return the replicas that the file fixes; 1 where it takes what the launcher gives (-1)."""
    counts = (get(values, each) for each in _SHARDS)
    return math.prod(each for each in counts if isinstance(each, int) and each > 0)


def _precision(values: Mapping[str, Any]) -> Precision:
    if get(values, _DTYPE) == _WORDS[Precision.BF16]:
        return Precision.BF16_TRUE
    return Precision.FP32 if get(values, _PARAM) == _WORDS[Precision.FP32] else Precision.BF16
