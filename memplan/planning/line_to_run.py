"""The line that trains by the plan of a training command."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from memplan.configs import KnobName
from memplan.configs.ecosystems.ecosystem import LOADER_KNOBS
from memplan.configs.knobs import LENGTH_KNOBS
from memplan.configs.languages.argparse_line import runs_another_script, values_said, with_value
from memplan.configs.languages.argparse_source import flag_in
from memplan.configs.languages.literals import python_word
from memplan.configs.languages.registry import ARGUMENTS
from memplan.probe.commands.template import PlaceholderName, fill_template, parse_template
from memplan.workload import TrainingCommand

if TYPE_CHECKING:
    from memplan.configs import UserConfig
    from memplan.patches import ConfigPatch
    from memplan.planning.subject import Subject
    from memplan.recipe import Recipe

_OPERATORS = re.compile(r"[|&;<>#\n]")
_RATES = (KnobName.LEARNING_RATE, KnobName.MIN_LEARNING_RATE)
_REWRITTEN = (*_RATES, *LENGTH_KNOBS, *LOADER_KNOBS)  # the rest of a recipe needs a placeholder, by which it is tried


def command_to_run(subject: Subject, recipe: Recipe, patch: ConfigPatch | None = None) -> str | None:
    """Return the line that trains a recipe, ``{steps}`` left to the user; None where the subject is no command.

    What it says of a script's arguments changes as the plan has it. Flags of the change that it has no placeholders for
    are behind it, where its program takes them.
    """
    if not isinstance(subject.source, TrainingCommand):
        return None
    template = parse_template(subject.source.template)
    line = fill_template(template, recipe, config_path=subject.source.config_path, steps=None)
    config = subject.config
    if config is not None and patch is not None:
        said = {each.key for each in config.knobs if each.key in config.said and each.name in _REWRITTEN}
        for each in patch.changes:
            if each.key in said:
                text, script = config.document.source.text, config.path.name
                line = with_value(text, line, each.key, each.value, script=script)
    more = flags_without_placeholder(subject, patch) if takes_more_flags(subject) else ""
    return f"{line} {more}" if more else line


def takes_more_flags(subject: Subject) -> bool:
    """Whether what is written behind a command line goes to the script of the config: it is one command of that."""
    source, config = subject.source, subject.config
    if not isinstance(source, TrainingCommand) or _OPERATORS.search(source.template):
        return False
    return config is None or not runs_another_script(source.template, config.path.name)


def flags_without_placeholder(subject: Subject, patch: ConfigPatch | None) -> str:
    """Return the flags of a change to a script's own arguments that its command line has neither set nor left open."""
    config, source = subject.config, subject.source
    if config is None or not isinstance(source, TrainingCommand) or patch is None or patch.files:
        return ""
    if config.document.language is not ARGUMENTS:
        return ""
    text = config.document.source.text
    keys = _keys_to_say(config, source) - values_said(text, source.template, script=config.path.name).keys()
    unsaid = (each for each in patch.changes if each.key in keys)
    words = ((each, python_word(each.value)) for each in unsaid)
    return " ".join(f"{flag_in(text, each.key)} {shlex.quote(word)}" for each, word in words if word is not None)


def _keys_to_say(config: UserConfig, source: TrainingCommand) -> set[str]:
    """Return the arguments for a plan's rates and lengths, which may have no placeholders."""
    has_rate = parse_template(source.template).has(PlaceholderName.LEARNING_RATE)
    names = (KnobName.MIN_LEARNING_RATE, *LENGTH_KNOBS, *(() if has_rate else (KnobName.LEARNING_RATE,)))
    return {each.key for each in config.knobs if each.name in names}
