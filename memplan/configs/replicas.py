"""The number of replicas, for a config that does not say how many it is written for.

Most configs hold the batch of one replica. Where one holds the batch of all of them, it stays and is divided: by the
micro-batch, or by accumulation where the file spells out the batch of one replica too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.configs.ecosystems.registry import ecosystem_named
from memplan.configs.keys import get
from memplan.configs.user_config import KnobName
from memplan.errors import ConfigError

if TYPE_CHECKING:
    from memplan.configs.user_config import UserConfig
    from memplan.recipe import Recipe


def for_replicas(config: UserConfig, world_size: int | None) -> UserConfig:
    """Apply a number of replicas to a config that leaves it open, and note what that means.

    Args:
        config: the config; one that says for how many replicas it is stays as it is.
        world_size: data-parallel replicas; None for as many as its launcher starts, where that is known.

    Raises:
        ConfigError: it holds the batch of all replicas, which they cannot share evenly.
    """
    world_size = world_size or config.replicas
    remark = ecosystem_named(config.format_name).remark_on_replicas(config, world_size)
    noted = config if remark is None else replace(config, notes=(*config.notes, remark))
    return _shared_by(noted, world_size or 1)


def on_replicas(config: UserConfig, recipe: Recipe, world_size: int) -> Recipe:
    """Return a recipe of a config for another number of replicas; a rate that a runner scales with them follows."""
    return ecosystem_named(config.format_name).on_replicas(config, recipe, world_size)


def reference_world_size(config: UserConfig) -> int | None:
    """Return for how many replicas a config's learning rate is meant; None where it does not say."""
    return ecosystem_named(config.format_name).reference_world_size(config)


def holds_batch_of_all(config: UserConfig) -> bool:
    """Whether the batch that a config holds is that of all replicas."""
    return _key_of_all(config) is not None


def _key_of_all(config: UserConfig) -> str | None:
    return ecosystem_named(config.format_name).key_of_all(config)


def _shared_by(config: UserConfig, world_size: int) -> UserConfig:
    recipe, key = config.recipe, _key_of_all(config)
    if recipe.world_size != 1 or world_size == 1:
        return config
    shared = on_replicas(config, recipe, world_size)
    if key is not None:
        shared = _shared(config, shared, key)
    return replace(config, recipe=shared)


def _shared(config: UserConfig, recipe: Recipe, key: str) -> Recipe:
    """Share the batch of all replicas by accumulation, where the config spells out that of one, else by the batch."""
    knob = config.knob(KnobName.MICRO_BATCH_SIZE)
    part = KnobName.MICRO_BATCH_SIZE if knob is None or knob.key == key else KnobName.ACCUMULATION_STEPS
    count = recipe.world_size
    share, rest = divmod(getattr(recipe, part), count)
    if rest:
        raise ConfigError(
            f"{key}={get(config.values, key) or recipe.micro_batch_size} cannot be shared by {count} replicas",
            where=str(config.path),
            hint=f"it is the batch of all of them: make it a multiple of {count}, or set another --world-size",
        )
    return replace(recipe, **{str(part): share})
