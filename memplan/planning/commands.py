"""Plan for the user's own training command: which options it takes, and the recipe it starts from."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan.configs import KnobName, PatchStyle, for_replicas, read_config
from memplan.configs.ecosystems.usual_names import declared_without_value
from memplan.errors import ConfigError, MemplanError, UsageError
from memplan.planning.subject import Subject, subject_of_config
from memplan.plans.changes import COMMAND_PRECISION
from memplan.probe.commands.template import PlaceholderName, fill_command, parse_template
from memplan.recipe import Precision, Recipe, counted
from memplan.workload import TrainingCommand

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan.configs import UserConfig
    from memplan.plans import PlanRequest
    from memplan.probe.commands.template import CommandTemplate

_FEWEST_ASKED_STEPS = 3  # two until memory has settled, and one to time
_DEFAULT_STEPS = 10
_FIRST_MICRO_BATCH = 4
_RATE = "{learning_rate}"
_IN_BACKGROUND = re.compile(r"(?<![&\\])&\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOptions:
    """A training command as the user gives it.

    Args:
        template: the command line with its placeholders.
        steps: optimizer steps of one trial.
        config_path: what ``{config}`` stands for; None where there is none.
        micro_batch_size: what the first trial runs with; None takes the config's, or a small one.
    """

    template: str
    steps: int = _DEFAULT_STEPS
    config_path: Path | None = None
    micro_batch_size: int | None = None


def command_options(
    command: str | None, configs: Sequence[Path], *, steps: int | None, batch_size: int | None, workload: str | None
) -> CommandOptions | None:
    """Collect the options of a training command; None where there is none and the config's workload is run.

    Raises:
        UsageError: there is neither a command nor a config, an option needs the one that is missing, or it is out of
            range.
    """
    if command is None:
        if not configs:
            raise UsageError("there is nothing to probe", hint="name a config, or your training command by --command")
        if steps is not None or batch_size is not None:
            option = "steps" if steps is not None else "batch-size"
            raise UsageError(f"{option} goes with a training command", hint="without one, the config's workload is run")
        return None
    if workload is not None:
        raise UsageError("command and workload exclude each other", hint="a command is run as it is")
    return CommandOptions(
        template=command,
        steps=_DEFAULT_STEPS if steps is None else counted("steps ", steps),
        config_path=configs[-1] if configs else None,
        micro_batch_size=None if batch_size is None else counted("batch-size ", batch_size),
    )


def config_beside(
    command: CommandOptions | None,
    paths: Sequence[Path],
    *,
    format_name: str | None,
    knob_keys: Mapping[str, str] | None,
    workload: str | None,
) -> tuple[UserConfig | None, tuple[str, ...]]:
    """Read the config, if there is one; one that only the command understands is left to it, with a note.

    Raises:
        ConfigError: the config cannot be read, and no command reads it instead; or the command is to get a copy of it.
    """
    if not paths:
        return None, ()
    try:
        line = "" if command is None else command.template
        config = read_config(
            *paths, format_name=format_name, knob_keys=knob_keys, workload_target=workload, command_line=line
        )
    except ConfigError as error:
        is_left_to_it = command is not None and not parse_template(command.template).has(PlaceholderName.PATCHED_CONFIG)
        if not is_left_to_it or format_name is not None or knob_keys or not all(each.is_file() for each in paths):
            raise
        told = MemplanError(error.problem, where=error.where)  # without the hint, which may be to give a command
        return None, (f"no patch: {told}",)
    return config, ()


def subject_for(
    command: CommandOptions | None, config: UserConfig | None, request: PlanRequest
) -> tuple[Subject, PlanRequest]:
    """Return what is trained, a command or else a config, and the request with what the command settles of it.

    Raises:
        UsageError: as for :func:`subject_of_command`.
        ConfigError: the config holds the batch of all replicas, which they cannot share evenly.
    """
    if command is not None:
        return subject_of_command(command, config, request)
    if config is None:
        raise AssertionError("there is neither a command nor a config")
    return subject_of_config(config, world_size=request.world_size), request


def card_count(command: CommandOptions | None, request: PlanRequest) -> int:
    """Return how many cards trials take: one for each replica of a command, and one for a workload."""
    return 1 if command is None else request.world_size or 1


def subject_of_command(
    command: CommandOptions, config: UserConfig | None, request: PlanRequest
) -> tuple[Subject, PlanRequest]:
    """Make a command the subject of a plan, and narrow the request down to the options that it takes.

    Args:
        command: the command.
        config: the config that it names, where memplan can read it.
        request: what is wanted of the device.

    Raises:
        UsageError: a placeholder is unknown or has no value, or the request needs one that is missing.
        ConfigError: the config holds the batch of all replicas, which they cannot share evenly.
    """
    if command.steps < _FEWEST_ASKED_STEPS:
        raise UsageError(
            f"steps {command.steps} must be at least {_FEWEST_ASKED_STEPS}", hint="memory settles in the second"
        )
    template = parse_template(command.template)
    if _IN_BACKGROUND.search(command.template):
        raise UsageError("the command ends with &", where="command", hint="leave it out: memplan waits for its steps")
    if template.has(PlaceholderName.PATCHED_CONFIG):
        _require_one_file(config)
        request = replace(request, patch_style=request.patch_style or PatchStyle.IN_PLACE)  # as trials are run
    if config is not None:
        config = for_replicas(config, request.world_size)
    current = _first_recipe(command, template, config, request)
    source = TrainingCommand(
        template=command.template,
        steps=command.steps,
        config_path=None if command.config_path is None else str(command.config_path),
        working_folder=str(Path.cwd()),
    )
    if template.has(PlaceholderName.LEARNING_RATE) and current.learning_rate is None:
        raise _unknown_rate(config)
    fill_command(source, current)  # raises for a missing placeholder before anything runs
    if request.global_batch_size is not None and not template.sets(PlaceholderName.ACCUMULATION_STEPS):
        raise UsageError(
            f"global-batch {request.global_batch_size} is held by accumulation, which the command does not take",
            where="command",
            hint="write {accumulation_steps} into it",
        )
    label = config.path.name if config is not None else _script_name(command.template)
    subject = Subject(source=source, current=current, config=config, label=label)
    return subject, replace(request, precisions=_precisions(template, current, request))


def _require_one_file(config: UserConfig | None) -> None:
    """Refuse a copy of a config that memplan cannot change, or that its bases and companions are not with.

    Raises:
        UsageError: there is no such config, or it is of several files.
    """
    problem = None
    if config is None:
        problem = "the command has {patched_config}, and there is no config that memplan can change"
    elif config.document.inherited or config.companions:
        problem = f"the command has {{patched_config}}, and {config.path.name} is one of several files"
    if problem is not None:
        raise UsageError(
            problem, where="command", hint="write an option of the script for the batch size: {micro_batch_size}"
        )


def _unknown_rate(config: UserConfig | None) -> UsageError:
    """Return the error for a command that is to be given a rate which nothing sets."""
    write = f"write the rate itself in the place of {_RATE}"
    if config is None:
        hint = f"name a config that sets it, or {write}"
    elif (unset := declared_without_value(config.document, KnobName.LEARNING_RATE)) is not None:
        hint = f"{config.path.name} leaves {unset} open: {write}, or set it there"
    else:
        hint = f"{config.path.name} has none under a usual name: {write}, or name its key by --map learning_rate=KEY"
    return UsageError(f"the command has {_RATE}, and memplan does not know it", where="command", hint=hint)


def _first_recipe(
    command: CommandOptions, template: CommandTemplate, config: UserConfig | None, request: PlanRequest
) -> Recipe:
    known = config.recipe if config is not None else Recipe(micro_batch_size=_FIRST_MICRO_BATCH)
    size = known.micro_batch_size if command.micro_batch_size is None else command.micro_batch_size
    world_size = request.world_size or known.world_size
    noted = None if config is None or config.original is None else config.original.options.get(COMMAND_PRECISION)
    is_said = config is not None and config.is_said(KnobName.PRECISION)
    precision = _first_precision(template, known, request, noted=noted, is_said=is_said)
    recipe = replace(known, micro_batch_size=size, precision=precision, world_size=world_size)
    if request.global_batch_size is None:
        return recipe
    per_replica = max(request.global_batch_size // world_size, 1)
    size = max(each for each in range(1, size + 1) if per_replica % each == 0)
    return replace(recipe, micro_batch_size=size, accumulation_steps=per_replica // size)


def _first_precision(
    template: CommandTemplate, known: Recipe, request: PlanRequest, *, noted: str | None, is_said: bool
) -> Precision:
    """Return the precision of the first trial: what an earlier plan noted in the config, or what the config says."""
    if not template.sets(PlaceholderName.PRECISION):
        if request.precisions is None or (is_said and request.precisions == (known.precision,)):
            return known.precision
        if is_said:
            raise UsageError(
                f"precision {','.join(request.precisions)} cannot be tried: the command itself says {known.precision}",
                where="command",
                hint="write {precision}, or {precision:fp32=WORD,bf16=WORD} in the words of your script, in its place",
            )
        if len(request.precisions) > 1:
            names = ",".join(request.precisions)
            raise UsageError(
                f"precision {names} cannot be compared: the command does not take one",
                where="command",
                hint="write {precision}, or {precision:fp32=WORD,bf16=WORD} in the words of your script",
            )
        return request.precisions[0]
    first = known.precision if noted is None else Precision(noted)
    words = request.precisions or template.precisions or (first,)
    return next((each for each in (first, known.precision) if each in words), words[0])


def _precisions(template: CommandTemplate, current: Recipe, request: PlanRequest) -> tuple[Precision, ...] | None:
    if not template.sets(PlaceholderName.PRECISION):
        return (current.precision,)
    return request.precisions or template.precisions


def _script_name(template: str) -> str:
    """The first word that names a Python file, without its folder; else the first word."""
    words = template.split()
    return Path(next((word for word in words if word.endswith(".py")), words[0])).name
