"""What a command line says of a script's ``argparse`` arguments, and the same line with other values.

Its words are those behind the script in the simple command that runs it. An argument is said behind one of its flags,
or behind the beginning of a long one that begins no other; its value is joined to the flag or the next word, and the
last one counts. A value may be a placeholder, which is left open, or one that the shell makes, which is not known.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from memplan.configs.languages.argparse_source import arguments_in
from memplan.configs.languages.literals import python_word
from memplan.configs.languages.shell_words import commands_in, plain_word

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from memplan.configs.languages.argparse_source import Argument
    from memplan.configs.languages.shell_words import Word

_NUMBER = re.compile(r"-[\d.]")
_MADE_BY_SHELL = re.compile(r"[$`*?~]")
_SHELLS = ("bash", "dash", "sh", "zsh")
_SHORT_LENGTH = 2
_TYPES: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str}
_SWITCH_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class Unsaid(Enum):
    """Why the value of an argument that a line says is not there."""

    OPEN = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """A value in a line.

    Args:
        argument: what it is a value of.
        begin: where its first character is.
        end: where the character behind its last is.
        text: the value; None of a switch, which has no value of its own.
        flag: the flag before it, in full.
    """

    argument: Argument
    begin: int
    end: int
    text: str | None
    flag: str


def values_said(text: str, line: str, *, script: str) -> dict[str, Any]:
    """Return what a line says of a script's arguments, by key; of those whose value is not there, why it is not.

    Args:
        text: the script.
        line: the command that starts it, placeholders included.
        script: name of its file.
    """
    return {each.argument.key: _value_of(each) for each in _said_in(text, line, script)}


def with_value(text: str, line: str, key: str, value: Any, *, script: str) -> str:
    """Return a line that says another value of an argument where it says one; else the line as it is."""
    *_, last = (None, *(each for each in _said_in(text, line, script) if each.argument.key == key))
    word = python_word(value)
    if last is None or last.text is None or word is None:
        return line
    return f"{line[: last.begin]}{shlex.quote(word)}{line[last.end :]}"


def runs_another_script(line: str, script: str) -> bool:
    """Whether a line runs scripts, and none of this name."""
    commands = commands_in(line)
    is_named = any(_place_of_script(words, script) is not None for words in commands)
    return not is_named and any(_place_of_any_script(words) is not None for words in commands)


def _place_of_script(words: Sequence[Word], script: str) -> int | None:
    """Return the place of the word that names the script, or its module; None where none does."""
    module = PurePosixPath(script).stem
    for place, word in enumerate(words):
        named = word.plain
        is_module = place > 0 and words[place - 1].text == "-m" and named.rpartition(".")[2] == module
        if is_module or PurePosixPath(named).name == script:
            return place
    return None


def _place_of_any_script(words: Sequence[Word]) -> int | None:
    return next((place for place, word in enumerate(words) if word.plain.endswith(".py")), None)


def _words_for(line: str, script: str, declared: Mapping[str, Argument]) -> list[Word]:
    """Return the words that a script gets: one of that name, or else that which is given most of its arguments."""
    commands = commands_in(line)
    named = [words[place + 1 :] for words in commands if (place := _place_of_script(words, script)) is not None]
    others = [words[place + 1 :] for words in commands if (place := _place_of_any_script(words)) is not None]
    found = [_before_end(words) for words in named[-1:] or others or map(_behind_program, commands)]
    counts = [sum(_flag_of(each.text, declared) is not None for each in words) for words in found]
    most = max(counts, default=0)
    return found[counts.index(most)] if counts.count(most) == 1 else []


def _before_end(words: list[Word]) -> list[Word]:
    """Return the words before that which ends flags."""
    return words[: next((place for place, word in enumerate(words) if word.text == "--"), len(words))]


def _behind_program(words: list[Word]) -> list[Word]:
    """Return the words behind a program, or behind the module that Python runs; none behind a shell."""
    if PurePosixPath(words[0].plain).name in _SHELLS:
        return []
    place = next((place for place, word in enumerate(words) if word.text == "-m"), -1)
    return words[place + 2 :] if place > 0 else words[1:]


def _said_in(text: str, line: str, script: str) -> Iterator[_Said]:
    declared = {flag: each for each in arguments_in(text) for flag in (*each.flags, *each.negated_flags)}
    words = _words_for(line, script, declared)
    for number, word in enumerate(words):
        found = _flag_of(word.text, declared)
        if found is None:
            continue
        flag, length = found
        argument = declared[flag]
        if argument.is_switch:
            yield _Said(argument=argument, begin=word.span.start, end=word.span.end, text=None, flag=flag)
        elif length < len(word.text):
            begin = word.span.start + length
            yield _Said(argument=argument, begin=begin, end=word.span.end, text=word.text[length:], flag=flag)
        elif number + 1 < len(words):
            value = words[number + 1]
            yield _Said(argument=argument, begin=value.span.start, end=value.span.end, text=value.text, flag=flag)


def _flag_of(word: str, declared: Mapping[str, Argument]) -> tuple[str, int] | None:
    """Return the flag that a word begins with, and how much of the word is before its value; None for other words."""
    name, equals, _value = word.partition("=")
    if name in declared:
        return name, len(name) + len(equals)
    if name.startswith("--"):
        begun = [each for each in declared if each.startswith(name)]
        keys = {declared[each].key for each in begun}
        return (begun[0], len(name) + len(equals)) if len(keys) == 1 and len(name) > _SHORT_LENGTH else None
    short = word[:_SHORT_LENGTH]
    return (short, _SHORT_LENGTH) if short in declared and not _NUMBER.match(word) else None


def _value_of(said: _Said) -> Any:
    """Return a value as the script's parser makes it, as far as its type or that of its default tells."""
    if said.text is None:
        switched = said.argument.value_switched_by(said.flag)
        return Unsaid.UNKNOWN if switched is None else switched
    if "{" in said.text and "${" not in said.text:
        return Unsaid.OPEN
    if said.argument.takes_several or _MADE_BY_SHELL.search(said.text):
        return Unsaid.UNKNOWN
    value = plain_word(said.text)
    if said.argument.is_on_or_off:
        is_read = said.argument.is_told_by_a_word
        return _SWITCH_WORDS.get(value.lower(), Unsaid.UNKNOWN) if is_read else bool(value)
    make = _TYPES.get(said.argument.type_name or "str")
    try:
        return Unsaid.UNKNOWN if make is None else make(value)
    except ValueError:
        return Unsaid.UNKNOWN
