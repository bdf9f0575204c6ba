"""What a plan is for: a workload, a config, a training command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from memplan.configs import MemplanOptions
from memplan.errors import UsageError
from memplan.planning.commands import command_options, config_beside, subject_for
from memplan.planning.subject import no_workload, subject_of_workload
from memplan.recipe import Recipe
from memplan.workload import Workload

if TYPE_CHECKING:
    from memplan.configs import UserConfig
    from memplan.planning.commands import CommandOptions
    from memplan.planning.subject import Subject
    from memplan.plans import PlanRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A workload with its recipe, a training command, a config, or the latter two.

    Args:
        workload: the workload and its current recipe.
        command: the training command and its options.
        config: the config that was read.
        notes: what to say about command and config, one phrase each.
    """

    workload: tuple[Workload, Recipe] | None = None
    command: CommandOptions | None = None
    config: UserConfig | None = None
    notes: tuple[str, ...] = ()

    @property
    def config_options(self) -> MemplanOptions:
        """The options that the config itself sets."""
        return MemplanOptions() if self.config is None else self.config.memplan_options

    def subject(self, request: PlanRequest) -> tuple[Subject, PlanRequest]:
        """Return what is trained, and the request with what the command settles of it."""
        if self.workload is None:
            return subject_for(self.command, self.config, request)
        workload, recipe = self.workload
        return subject_of_workload(workload, recipe, tuple(sys.path), world_size=request.world_size), request


def read_target(
    config_or_workload: str | Path | Sequence[str | Path] | Workload,
    recipe: Recipe | None,
    command_line: str | None,
    options: MemplanOptions,
    *,
    steps: int | None,
    batch_size: int | None,
    format_name: str | None,
) -> Target:
    """Return what to plan for; configs are read from their paths.

    Args:
        config_or_workload: as for :func:`memplan.plan`, like all others.
        recipe: current recipe of a workload.
        command_line: the training command.
        options: name of the workload and keys of the knobs.
        steps: optimizer steps of a command's trial.
        batch_size: first micro-batch of a command.
        format_name: ecosystem of the config.

    Raises:
        UsageError: arguments exclude each other, or are neither configs nor a workload.
        ConfigError: a config cannot be read.
    """
    name, keys = options.workload, options.knobs
    if isinstance(config_or_workload, Workload):
        has_config_options = bool(keys or format_name or name)
        return _workload_target(config_or_workload, recipe, command_line, has_config_options=has_config_options)
    paths = _paths_of(config_or_workload)
    if recipe is not None:
        raise UsageError("recipe= goes with a workload; a config says its own recipe")
    command = command_options(command_line, paths, steps=steps, batch_size=batch_size, workload=name)
    config, notes = config_beside(command, paths, format_name=format_name, knob_keys=keys, workload=name)
    return Target(command=command, config=config, notes=notes)


def _paths_of(given: object) -> tuple[Path, ...]:
    if isinstance(given, str | Path):
        return (Path(given),)
    if not isinstance(given, Sequence):
        raise no_workload(given)
    return tuple(map(Path, given))


def _workload_target(
    workload: Workload, recipe: Recipe | None, command_line: str | None, *, has_config_options: bool
) -> Target:
    if command_line is not None:
        raise UsageError("command= runs your own script, and goes with a config or alone, not with a workload")
    if has_config_options:
        raise UsageError("knobs=, format_name= and workload= go with a config, not with a workload")
    return Target(workload=(workload, recipe or Recipe(micro_batch_size=1)))
