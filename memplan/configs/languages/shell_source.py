"""Read the flags of a launch script's training command as data, and find where each is written.

The training command is the one that names a Python file, or a module behind ``-m``; its flags are what comes after.
The keys are the flags' names as ``argparse`` keeps them: no dashes before, underscores within.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan.configs.keys import is_aside
from memplan.configs.languages.shell_arithmetic import computed_number, names_left_open
from memplan.configs.languages.shell_variables import expanded, literal_behind, places_left_open, value_behind
from memplan.configs.languages.shell_words import Word, commands_in
from memplan.configs.languages.spans import Edit, Location, Span, line_at
from memplan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SHORT = re.compile(r"-[A-Za-z]\w*")
_GAP = re.compile(r"[\s\\]+")
LAUNCHER = "accelerate_launch"  # key of what stands before the program, where it bears on a step
_OF_ACCELERATE = ("mixed_precision",)
_SIGNS = ("train_batch_size", "batch_size")
_PRINTING = ("echo", "printf")
_WORDS = {"true": True, "false": False}
_LAUNCHERS = (
    "torchrun",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate",
    "deepspeed.launcher.runner",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flag:
    """One flag of the training command; its values are the words up to the next flag, or its numbers."""

    name: str
    word: Word
    values: tuple[Word, ...]

    @property
    def key(self) -> str:
        return self.name.lstrip("-").replace("-", "_")


def load_shell(text: str, *, where: str) -> dict[str, Any]:
    """Read the flags of the script's one training command.

    Raises:
        ConfigError: there is no such command, or there are several.
    """
    commands = _training_commands(text)
    if len(commands) != 1:
        lines = ", ".join(str(line_at(text, each[0].span.start)) for each in commands)
        problem = f"it has several training commands (lines {lines})" if commands else "it has no training command"
        raise ConfigError(problem, where=where, hint="name a script with one `python train.py --flag value ...`")
    values = {flag.key: _value_of(text, flag) for flag in _flags(commands[0])}
    launched = {each: word for each in _OF_ACCELERATE if (word := launcher_value(text, each)) is not None}
    return {**values, **({LAUNCHER: launched} if launched and _is_accelerates(commands[0]) else {})}


def switch_named(text: str, key: str) -> str | None:
    """Return the flag of a key as the training command has it, if without a value."""
    flag = _last(_flags_of_script(text), key)
    return flag.name if flag is not None and not flag.values else None


def launcher_value(text: str, key: str) -> str | None:
    """Return what the launcher before the program is given for a flag, as far as the script says it."""
    flag = _last(_launcher_flags(text), key)
    literal = literal_behind(text, flag.values[0]) if flag is not None and flag.values else None
    return None if literal is None else literal.plain


def launcher_line(text: str) -> str:
    """Return what stands before the program in the script's one training command: words, flags and values, program."""
    flags = _launcher_flags(text)
    pairs = [(each.name, each.values[0]) for each in flags if each.values]
    numbers = {name: computed_number(text, value) for name, value in pairs}
    said = [f"{name} {_plain_text(text, value) if numbers[name] is None else numbers[name]}" for name, value in pairs]
    words = [each.plain for each in _launcher_words(text) if not each.text.startswith("--")]
    place = len(words) - (2 if words[-2:-1] == ["-m"] else 1)
    return " ".join([*words[:place], *said, *words[place:]])


def with_computed(text: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a script's flags with the numbers that it computes in place of variable names."""
    single = [each for each in _flags_of_script(text) if len(each.values) == 1]
    computed = {each.key: computed_number(text, each.values[0]) for each in single}
    return {**values, **{key: value for key, value in computed.items() if value is not None}}


def environment_behind(text: str, key: str) -> tuple[str, ...]:
    """Return the variables of the environment that the value of a flag depends on."""
    flag = _last(_flags_of_script(text), key)
    words = flag.values if flag is not None else ()
    return tuple(dict.fromkeys(name for each in words for name in names_left_open(text, each)))


def lines_behind(text: str, key: str) -> tuple[int, ...]:
    """Return the lines that set the variable of a flag, where only running the script would show which one counts."""
    flag = _last(_flags_of_script(text), key)
    places = (place for each in (flag.values if flag else ()) for place in places_left_open(text, each))
    return tuple(line_at(text, each) for each in places)


def locate_in_shell(text: str, key: str) -> Location | None:
    """Find the value of a flag; of a repeated flag the last counts. None where the command has no such flag."""
    is_launchers, own_key = key.startswith(f"{LAUNCHER}."), key.removeprefix(f"{LAUNCHER}.")
    flag = _last(_launcher_flags(text) if is_launchers else _flags_of_script(text), own_key)
    if flag is None:
        return None
    line = line_at(text, flag.word.span.start)
    if not flag.values:  # a switch; its value is added after it
        end = flag.word.span.end
        return Location(span=Span(start=end, end=end), line=line)
    if len(flag.values) != 1:
        return Location(span=flag.word.span, line=line, obstacle="it has several values")
    literal, own = literal_behind(text, flag.values[0]), flag.values[0].span
    if literal is None:
        known = (computed_number(text, flag.values[0]), value_behind(text, flag.values[0]))
        is_known = any(each is not None for each in known)
        return Location(span=own, line=line, obstacle=None if is_known else "the script computes it")  # takes its place
    span = own if _is_shared(text, flag, literal) else literal.span
    return Location(span=span, line=line_at(text, span.start))


def _is_shared(text: str, flag: _Flag, literal: Word) -> bool:
    """Whether another flag gets its value from the same place."""
    every = (*_launcher_flags(text), *_flags_of_script(text))
    others = (each for each in every if each.word != flag.word and len(each.values) == 1)
    places = (literal_behind(text, each.values[0]) for each in others)
    return any(each is not None and each.span == literal.span for each in places)


def add_to_shell(text: str, entries: dict[str, str]) -> Edit | None:
    """Return the edit that adds flags behind the last one, spaced as that one is; None where there is none."""
    flags = _flags_of_script(text)
    if not flags:
        return None
    last, command = flags[-1], _training_commands(text)[0]
    before = command[command.index(last.word) - 1]
    gap = text[before.span.end : last.word.span.start]
    gap = gap if _GAP.fullmatch(gap) else " "
    dashed = any("-" in each.name.lstrip("-") for each in flags)
    words = [
        f"{gap}--{name.replace('_', '-') if dashed else name}{'' if literal == 'True' else f' {literal}'}"
        for name, literal in entries.items()
    ]
    end = (last.values[-1] if last.values else last.word).span.end
    return Edit(span=Span(start=end, end=end), text="".join(words))


def _training_commands(text: str) -> list[list[Word]]:
    """Return the commands that start a program with flags; of several only those with a batch to train with.

    Programs that are named after evaluation or the like are left out where there are others.
    """
    commands = (expanded(text, each) for each in commands_in(text))
    started = [each for each in commands if each and _arguments_start(each) is not None]
    found = [each for each in started if not is_aside(_program_name(each))] or started
    for sign in _SIGNS if len(found) > 1 else ():
        signed = [each for each in found if any(sign in flag.key for flag in _flags(each))]
        if signed:
            return signed
    return found


def _arguments_start(command: Sequence[Word]) -> int | None:
    """Return the index of the first word behind the program; None where a command trains nothing."""
    words = [each.plain for each in command]
    if words[0] in _PRINTING:
        return None
    for index, word in enumerate(words):
        is_module = index > 0 and words[index - 1] in ("-m", "--module") and word not in _LAUNCHERS
        if is_module or (word.endswith(".py") and not word.startswith("-")):
            return index + 1 if any(each.startswith("--") for each in words[index + 1 :]) else None
    return None


def _program_name(command: Sequence[Word]) -> str:
    """Return the name of the script or module that a command starts, without its folder or package."""
    start = _arguments_start(command) or 1
    name = command[start - 1].plain
    return Path(name).stem if name.endswith(".py") else name.rpartition(".")[2]


def _last(flags: Sequence[_Flag], key: str) -> _Flag | None:
    """Return the last flag of a key, the one that programs use."""
    return next((each for each in reversed(flags) if each.key == key), None)


def _flags_of_script(text: str) -> list[_Flag]:
    commands = _training_commands(text)
    return _flags(commands[0]) if len(commands) == 1 else []


def _launcher_flags(text: str) -> list[_Flag]:
    """Return the long flags before the program, each with the one word behind it."""
    found = (each for each in _flags_among(_launcher_words(text)) if each.name.startswith("--"))
    return [_Flag(name=each.name, word=each.word, values=each.values[:1]) for each in found]


def _launcher_words(text: str) -> list[Word]:
    commands = _training_commands(text)
    return commands[0][: _arguments_start(commands[0])] if len(commands) == 1 else []


def _is_accelerates(command: Sequence[Word]) -> bool:
    words = [each.plain for each in command]
    return any(pair == ("accelerate", "launch") for pair in itertools.pairwise(words))


def _flags(command: Sequence[Word]) -> list[_Flag]:
    return _flags_among(command[_arguments_start(command) or 0 :])


def _flags_among(words: Sequence[Word]) -> list[_Flag]:
    found: list[_Flag] = []
    for word in words:
        name, equals, _ = word.text.partition("=")
        if name.startswith("--") and len(name) > 2:
            inner = Span(start=word.span.start + len(name) + 1, end=word.span.end)
            values = (Word(span=inner, text=word.text[len(name) + 1 :]),) if equals else ()
            found.append(_Flag(name=name, word=word, values=values))
        elif _SHORT.fullmatch(word.text):
            found.append(_Flag(name=word.text, word=word, values=()))
        elif found and "=" not in found[-1].word.text and not _is_positional(word, found[-1]):
            found[-1] = _Flag(name=found[-1].name, word=found[-1].word, values=(*found[-1].values, word))
    return found


def _is_positional(word: Word, flag: _Flag) -> bool:
    """Whether a word behind a flag's number is none, as the folder in ``--batch-size 8 data``."""
    follows_number = bool(flag.values) and _is_number(flag.values[-1].plain)
    return follows_number and "$" not in word.text and not _is_number(word.plain)


def _is_number(plain: str) -> bool:
    return isinstance(_typed(plain), int | float) and plain.lower() not in _WORDS


def _value_of(text: str, flag: _Flag) -> Any:
    if not flag.values:
        return True
    values = [_typed(_plain_text(text, each)) for each in flag.values]
    return values[0] if len(values) == 1 else values


def _plain_text(text: str, word: Word) -> str:
    """Return what the program gets for a word; the word itself where that is not known."""
    value = value_behind(text, word)
    return word.plain if value is None else value


def _typed(plain: str) -> Any:
    if plain.lower() in _WORDS:
        return _WORDS[plain.lower()]
    for kind in (int, float):
        try:
            return kind(plain)
        except ValueError:
            continue
    return plain
