"""What a number of replicas means for a config that does not say for how many it is written.

Most configs hold the batch of one replica. Where one holds the batch of all of them, that stays and is shared: by the
micro-batch, or by accumulation where the file spells out the batch of one replica too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.configs.keys import get
from memplan.configs.user_config import KnobName
from memplan.errors import ConfigError

if TYPE_CHECKING:
    from memplan.configs.user_config import UserConfig
    from memplan.recipe import Recipe

# Ecosystem -> its batch of all replicas: a batch per optimizer step in those that accumulate by themselves.
_BATCH_OF_ALL = {
    "deepspeed": "train_batch_size",
    "detectron2": "SOLVER.IMS_PER_BATCH",
    "detectron2-lazy": "dataloader.train.total_batch_size",
    "torchtitan": "training.global_batch_size",
    "ultralytics": "batch",
}


def for_replicas(config: UserConfig, world_size: int) -> UserConfig:
    """Take a config that leaves the number of replicas open to be for as many; any other is returned as it is.

    Raises:
        ConfigError: it holds the batch of all replicas, which they cannot share evenly.
    """
    if config.recipe.world_size != 1 or world_size == 1:
        return config
    if not holds_batch_of_all(config):
        return replace(config, recipe=replace(config.recipe, world_size=world_size))
    return replace(config, recipe=_shared(config, world_size))


def holds_batch_of_all(config: UserConfig) -> bool:
    """Say whether the batch that a config holds is that of all replicas."""
    key = _BATCH_OF_ALL.get(config.format_name)
    if key is None:
        return False
    total = get(config.values, key)
    is_said = isinstance(total, int) and total > 0
    return is_said or config.knob(KnobName.MICRO_BATCH_SIZE) is None  # left to the ecosystem's default


def _shared(config: UserConfig, world_size: int) -> Recipe:
    recipe, key = config.recipe, _BATCH_OF_ALL[config.format_name]
    knob = config.knob(KnobName.MICRO_BATCH_SIZE)
    if knob is None or knob.key == key:
        size, rest = divmod(recipe.micro_batch_size, world_size)
        shared = replace(recipe, micro_batch_size=max(size, 1), world_size=world_size)
    else:
        steps, rest = divmod(recipe.accumulation_steps, world_size)
        shared = replace(recipe, accumulation_steps=max(steps, 1), world_size=world_size)
    if rest:
        raise ConfigError(
            f"{key}={get(config.values, key) or recipe.micro_batch_size} cannot be shared by {world_size} replicas",
            where=str(config.path),
            hint=f"it is the batch of all of them: make it a multiple of {world_size}, or set another --world-size",
        )
    return shared
