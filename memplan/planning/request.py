"""The subject of a plan: what is trained, and how it is told from others."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import cloudpickle

from memplan.cards import DeviceKind
from memplan.configs import expressible
from memplan.devices import resolve_device
from memplan.errors import UsageError
from memplan.probe.command_template import PlaceholderName, parse_template, unheard_by
from memplan.results import plain
from memplan.workload import PickledWorkload, TrainingCommand, WorkloadReference

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memplan.cards import DeviceSpec
    from memplan.configs import UserConfig
    from memplan.plans import PlanRequest
    from memplan.recipe import Recipe
    from memplan.workload import Workload, WorkloadSource


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
    def unwritable(self) -> str | None:
        """Why no change at all can be written into the config; None where one can, or where there is no config."""
        return None if self.config is None else expressible(self.config, self.current)

    def obstacle(self, recipe: Recipe) -> str | None:
        """Say why command or config cannot express a recipe; None where they can, or have nothing to write."""
        if isinstance(self.source, TrainingCommand):
            unheard = unheard_by(parse_template(self.source.template), self.current, recipe)
            if unheard is not None:
                return unheard
        if self.config is None or self.unwritable is not None:
            return None
        return expressible(self.config, recipe)

    def as_tried(self, recipe: Recipe) -> Recipe:
        """Return the recipe as a trial can run it: a command that takes no learning rate keeps its own."""
        if not isinstance(self.source, TrainingCommand):
            return recipe
        takes_rate = parse_template(self.source.template).names(PlaceholderName.LEARNING_RATE)
        return recipe if takes_rate else replace(recipe, learning_rate=self.current.learning_rate)

    def fingerprint(self, request: PlanRequest, device: DeviceSpec, versions: Mapping[str, str]) -> str:
        """Digest of what decides the outcome of a trial, so that an interrupted run can be resumed.

        Not counted: code outside of the folders in which the workload is looked for, and data.
        """
        facts = (
            _source_facts(self.source),
            plain(self.current),
            request.facts(),
            plain(device) if device.kind is DeviceKind.CUDA else str(device.kind),
            dict(versions),
        )
        return hashlib.sha256(_canonical(facts).encode()).hexdigest()


def subject_of_config(config: UserConfig, *, world_size: int | None = None) -> Subject:
    """Take the workload and the recipe from a config.

    Args:
        config: the config.
        world_size: data-parallel replicas; None for as many as the config is written for.
    """
    current = replace(config.recipe, world_size=world_size or config.recipe.world_size)
    if config.recipe.world_size == 1:  # the config does not say, so it is for as many as there are
        config = replace(config, recipe=current)
    return Subject(source=config.workload, current=current, config=config, label=str(config.path.name))


def subject_of_workload(
    workload: Workload, recipe: Recipe, search_path: tuple[str, ...], *, world_size: int | None = None
) -> Subject:
    """Take a workload made in this process; its callables travel to children with cloudpickle.

    A recipe for one replica is taken to be for ``world_size`` of them, where that is given.

    Raises:
        UsageError: a callable cannot be pickled.
    """
    try:
        payload = cloudpickle.dumps(workload)
    except Exception as error:
        raise UsageError(
            f"the workload cannot be handed to a child process: {type(error).__name__}: {error}",
            hint="its callables must not hold open files, locks or CUDA tensors",
        ) from error
    if recipe.world_size == 1 and world_size is not None:
        recipe = replace(recipe, world_size=world_size)
    source = PickledWorkload(payload=payload, fingerprint=hashlib.sha256(payload).hexdigest(), search_path=search_path)
    return Subject(source=source, current=recipe, config=None, label=workload.name or "workload")


def _source_facts(source: WorkloadSource) -> tuple[object, ...]:
    if isinstance(source, PickledWorkload):
        return (source.fingerprint,)
    if isinstance(source, TrainingCommand):
        return (source, _digest_of(_files_named_in(source)))
    return (source.target, source.config, _code_digest(source))


def _files_named_in(command: TrainingCommand) -> list[Path]:
    """The config, and whatever else in the command is a file below the folder that it starts in."""
    words = [*command.template.split(), *([command.config_path] if command.config_path else [])]
    paths = [Path(command.working_folder) / word.strip("\"'") for word in words]
    return [path for path in paths if path.is_file()]


def _code_digest(source: WorkloadReference) -> str | None:
    """Digest of the Python files beside the workload's module, its package included; None where it is not found."""
    top, *rest = source.target.partition(":")[0].split(".")
    for folder in map(Path, source.search_path):
        module = folder / f"{top}.py"
        if not rest and module.is_file():
            return _digest_of(folder.glob("*.py"))
        if (folder / top).is_dir():
            return _digest_of((folder / top).rglob("*.py"))
    return None


def _digest_of(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(str(path).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _canonical(value: object) -> str:
    """Write nested data the same way whatever the order and the types of its keys."""
    if isinstance(value, Mapping):
        return "{" + ",".join(sorted(f"{key!r}:{_canonical(each)}" for key, each in value.items())) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_canonical(each) for each in value) + "]"
    return repr(value)


def device_for(text: str, budget_bytes: int | None) -> DeviceSpec:
    """Resolve a device and let a budget below its size take the size's place."""
    spec = resolve_device(text, budget_bytes=budget_bytes)
    total_bytes = min(spec.total_bytes, budget_bytes or spec.total_bytes)
    return replace(spec, total_bytes=total_bytes)
