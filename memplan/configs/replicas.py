"""The number of replicas, for a config that does not say how many it is written for.

Most configs hold the batch of one replica. Where one holds the batch of all of them, it stays and is divided: by the
micro-batch, or by accumulation where the file spells out the batch of one replica too. OpenMMLab's say for how many
replicas their learning rate is, by the batch it is for or by their file's name.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.configs.ecosystems import openmmlab_files
from memplan.configs.ecosystems.openmmlab_files import NAMED_FOR_CARDS, reference_cards, remark_on_name
from memplan.configs.ecosystems.registry import ecosystem_named
from memplan.configs.keys import get
from memplan.configs.user_config import KnobName
from memplan.errors import ConfigError

if TYPE_CHECKING:
    from memplan.configs.user_config import UserConfig
    from memplan.recipe import Recipe

_BASE_BATCH = "auto_scale_lr.base_batch_size"
# Those whose batch of all replicas is easily mistaken for that of one.
_UNSAID = ("detectron2", "detectron2-lazy")


def for_replicas(config: UserConfig, world_size: int | None) -> UserConfig:
    """Apply a number of replicas to a config that leaves it open, and note what that means.

    Args:
        config: the config; one that says for how many replicas it is stays as it is.
        world_size: data-parallel replicas; None for as many as its launcher starts, where that is known.

    Raises:
        ConfigError: it holds the batch of all replicas, which they cannot share evenly.
    """
    world_size = world_size or config.replicas
    remark = _remark_where_open(config) if world_size is None else _remark_on_reference(config, world_size)
    noted = config if remark is None else replace(config, notes=(*config.notes, remark))
    return _shared_by(noted, world_size or 1)


def on_replicas(config: UserConfig, recipe: Recipe, world_size: int) -> Recipe:
    """Return a recipe of a config for another number of replicas; a rate that a runner scales with them follows."""
    if config.format_name in NAMED_FOR_CARDS:
        return openmmlab_files.on_replicas(config.values, recipe, world_size)
    return replace(recipe, world_size=world_size)


def reference_world_size(config: UserConfig) -> int | None:
    """Return for how many replicas an OpenMMLab config's learning rate is meant; None where it does not say.

    That is the batch of ``auto_scale_lr`` over the config's own, or the file's name (``_8xb2``) where that agrees with
    the config. A runner that scales the rate itself makes it right for any number.
    """
    values, size = config.values, config.first_recipe.micro_batch_size
    if config.format_name not in NAMED_FOR_CARDS or get(values, "auto_scale_lr.enable") is True:
        return None
    base = get(values, _BASE_BATCH)
    if isinstance(base, int) and base > 0:
        return base // size if base % size == 0 else None
    return reference_cards(config.path, size)


def _remark_where_open(config: UserConfig) -> str | None:
    if config.format_name in NAMED_FOR_CARDS:
        return remark_on_name(config.path, config.first_recipe.micro_batch_size)
    key = _key_of_all(config)
    is_unsaid = config.format_name in _UNSAID or config.knob(KnobName.GLOBAL_BATCH_SIZE) is not None
    if is_unsaid and config.recipe.world_size == 1 and key is not None:
        return f"{key} is the batch of all cards: give --world-size where there are several"
    return None


def _remark_on_reference(config: UserConfig, world_size: int) -> str | None:
    cards, size = reference_world_size(config), config.first_recipe.micro_batch_size
    if cards in (None, world_size):
        return None
    base = get(config.values, _BASE_BATCH)
    said = f"the file is named for {cards} cards" if base is None else f"{_BASE_BATCH} is {base}"
    return f"{said}: rate and schedule are taken to be for {cards} x {size} samples, not for {world_size} x {size}"


def holds_batch_of_all(config: UserConfig) -> bool:
    """Whether the batch that a config holds is that of all replicas."""
    return _key_of_all(config) is not None


def _key_of_all(config: UserConfig) -> str | None:
    """Return the key of the batch of all replicas; None where a config holds the batch of one."""
    if (knob := config.knob(KnobName.GLOBAL_BATCH_SIZE)) is not None:
        return knob.key
    key = ecosystem_named(config.format_name).batch_of_all
    if key is None:
        return None
    total = get(config.values, key)
    is_default = config.knob(KnobName.MICRO_BATCH_SIZE) is None  # left to the ecosystem, it is that of all of them
    return key if is_default or (isinstance(total, int) and total > 0) else None


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
