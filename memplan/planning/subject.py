"""The subject of a plan: what is trained."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from memplan.children import installed_modules
from memplan.children.pickling import pickled
from memplan.configs import expressible, for_replicas
from memplan.errors import UsageError, raised_text
from memplan.planning.digests.code_digest import code_digest
from memplan.planning.digests.value_digest import value_digest
from memplan.probe.commands.template import PlaceholderName, command_obstacle, parse_template
from memplan.recipe import Recipe
from memplan.torch_settings import read_torch_settings
from memplan.workload import PickledWorkload, TrainingCommand, Workload

if TYPE_CHECKING:
    from memplan.configs import UserConfig
    from memplan.planning.digests.value_digest import ValueDigest
    from memplan.workload import WorkloadSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is trained.

    Args:
        source: how child processes get hold of the workload.
        current: the recipe it has now.
        config: the user's config; None for a workload handed over in Python, and for a command without one.
        label: what to call it before it has been built.
    """

    source: WorkloadSource
    current: Recipe
    config: UserConfig | None
    label: str

    @property
    def is_command(self) -> bool:
        """Whether a training command is run as it is, rather than a workload."""
        return isinstance(self.source, TrainingCommand)

    @property
    def current_name(self) -> str:
        """What to call the recipe it has now: that of a command without a config is only where memplan starts."""
        return "first recipe" if self.is_command and self.config is None else "current recipe"

    @property
    def unwritable(self) -> str | None:
        """Why no change at all can be written into the config; None where one can, or where there is no config."""
        return None if self.config is None else expressible(self.config, self.as_written(self.current))

    def obstacle(self, recipe: Recipe, *, on_cpu: bool = False) -> str | None:
        """Say why command or config cannot express a recipe; None where they can, or have nothing to write.

        Args:
            recipe: what is to be expressed.
            on_cpu: whether it is to be trained on the CPU, where some programs offer less.
        """
        if isinstance(self.source, TrainingCommand):
            unheard = command_obstacle(parse_template(self.source.template), self.current, recipe)
            if unheard is not None:
                return unheard
        if self.config is None or self.unwritable is not None:
            return None
        return expressible(self.config, self.as_written(recipe), on_cpu=on_cpu)

    def as_written(self, recipe: Recipe) -> Recipe:
        """Return the recipe as the config shall say it: a precision that it has no word for is left to the command."""
        if self.config is None or not isinstance(self.source, TrainingCommand):
            return recipe
        takes_precision = parse_template(self.source.template).has(PlaceholderName.PRECISION)
        said = replace(recipe, precision=self.config.recipe.precision)
        return said if takes_precision and expressible(self.config, recipe) is not None else recipe

    def as_tried(self, recipe: Recipe) -> Recipe:
        """Return the recipe as a trial can run it: a command that takes no learning rate keeps its own."""
        if not isinstance(self.source, TrainingCommand):
            return recipe
        takes_rate = parse_template(self.source.template).sets(PlaceholderName.LEARNING_RATE)
        return recipe if takes_rate else replace(recipe, learning_rate=self.current.learning_rate)


def subject_of_config(config: UserConfig, *, world_size: int | None = None) -> Subject:
    """Take the workload and the recipe from a config.

    Args:
        config: the config.
        world_size: data-parallel replicas; None for as many as the config is written for.

    Raises:
        ConfigError: the config holds the batch of all replicas, which they cannot share evenly.
    """
    config = for_replicas(config, world_size)
    current = replace(config.recipe, world_size=config.recipe.world_size if world_size is None else world_size)
    return Subject(source=config.workload, current=current, config=config, label=str(config.path.name))


def no_workload(given: object) -> UsageError:
    """Return the error for something else than a workload."""
    if isinstance(given, str | PurePath):
        hint = "memplan.plan and the command memplan estimate take a config"
        return UsageError(f"{str(given)!r} is no workload", hint=hint)
    hint = "pass memplan.Workload(model=..., batch=..., loss=..., optimizer=...)"
    return UsageError(f"a {type(given).__name__} is no workload", hint=hint)


def require_workload(workload: object, recipe: object) -> None:
    """Make sure that a caller has passed a workload and a recipe.

    Raises:
        UsageError: either is something else.
    """
    if not isinstance(workload, Workload):
        raise no_workload(workload)
    if not isinstance(recipe, Recipe):
        raise UsageError(f"recipe={recipe!r} is no recipe", hint="pass recipe=memplan.Recipe(micro_batch_size=8)")


def subject_of_workload(
    workload: Workload, recipe: Recipe, search_path: tuple[str, ...], *, world_size: int | None = None
) -> Subject:
    """Take a workload made in this process; its callables travel to children with cloudpickle.

    A recipe for one replica is taken to be for ``world_size`` of them, where that is given.

    Raises:
        UsageError: a callable cannot be pickled, or something else was passed for the workload or the recipe.
    """
    require_workload(workload, recipe)
    try:
        payload = pickled(workload)
    except Exception as error:
        raise UsageError(
            f"the workload cannot be handed to a child process: {raised_text(error)}",
            hint="its callables must not hold open files, locks, CUDA tensors or compiled functions; modules may",
        ) from error
    if recipe.world_size == 1 and world_size is not None:
        recipe = replace(recipe, world_size=world_size)
    contents = value_digest([(each.name, getattr(workload, each.name)) for each in fields(Workload)])
    source = PickledWorkload(
        payload=payload,
        fingerprint=workload_digest(contents, search_path),
        search_path=search_path,
        torch_settings=read_torch_settings(),
        installed_modules=installed_modules(contents.modules),
    )
    return Subject(source=source, current=recipe, config=None, label=workload.name or "workload")


def workload_digest(contents: ValueDigest, search_path: tuple[str, ...]) -> str:
    """Digest a workload made in this process, with the source of the modules that it refers to."""
    return hashlib.sha256(f"{contents.sha256} {code_digest(contents.modules, search_path)}".encode()).hexdigest()
