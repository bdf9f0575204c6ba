"""The line that trains by the plan of a training command."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from memplan.configs import KnobName
from memplan.configs.knobs import LENGTH_KNOBS
from memplan.probe.commands.template import PlaceholderName, fill_template, parse_template
from memplan.workload import TrainingCommand

if TYPE_CHECKING:
    from memplan.patches import ConfigPatch
    from memplan.planning.subject import Subject
    from memplan.recipe import Recipe

_OPERATORS = re.compile(r"[|&;<>#\n]")
_FLAG = re.compile(r"--(?P<name>[\w-]+) \S+")


def command_to_run(subject: Subject, recipe: Recipe, patch: ConfigPatch | None = None) -> str | None:
    """Return the line that trains a recipe, ``{steps}`` left to the user; None where the subject is no command.

    Flags of the change that it has no placeholders for are behind it, where its program takes them.
    """
    if not isinstance(subject.source, TrainingCommand):
        return None
    template = parse_template(subject.source.template)
    line = fill_template(template, recipe, config_path=subject.source.config_path, steps=None)
    more = flags_without_placeholder(subject, patch) if takes_more_flags(subject.source) else ""
    return f"{line} {more}" if more else line


def takes_more_flags(command: TrainingCommand) -> bool:
    """Whether what is written behind a command line goes to its program: it is one command, not redirected."""
    return not _OPERATORS.search(command.template)


def flags_without_placeholder(subject: Subject, patch: ConfigPatch | None) -> str:
    """Return the flags of a change to a script's own arguments that its command line has neither set nor left open."""
    config, source = subject.config, subject.source
    if config is None or not isinstance(source, TrainingCommand) or patch is None or patch.files:
        return ""
    has_rate = parse_template(source.template).has(PlaceholderName.LEARNING_RATE)
    unsaid = (KnobName.MIN_LEARNING_RATE, *LENGTH_KNOBS, *(() if has_rate else (KnobName.LEARNING_RATE,)))
    keys = {each.key for each in config.knobs if each.name in unsaid}
    said = {each.partition("=")[0] for each in shlex.split(source.template)}
    flags = [each for each in _FLAG.finditer(patch.override_line or "") if each["name"].replace("-", "_") in keys]
    return " ".join(each[0] for each in flags if f"--{each['name']}" not in said)
