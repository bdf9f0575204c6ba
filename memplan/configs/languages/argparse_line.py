"""What a command line says of a script's ``argparse`` arguments, and the same line with other values.

An argument is said behind one of its flags, or behind the beginning of a long one that begins no other; its value is
joined to the flag or the next word, and the last one counts. A value that is a placeholder is left open.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memplan.configs.languages.argparse_source import arguments_in
from memplan.configs.languages.literals import python_word

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memplan.configs.languages.argparse_source import Argument

_WORD = re.compile(r"\S+")
_NUMBER = re.compile(r"-[\d.]")
_SHORT_LENGTH = 2
_TYPES: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """A value in a line.

    Args:
        argument: what it is a value of.
        begin: where its first character is.
        end: where the character behind its last is.
        text: the value; None of a switch, which has no value of its own.
        flag: the flag before it.
    """

    argument: Argument
    begin: int
    end: int
    text: str | None
    flag: str


def values_said(text: str, line: str) -> dict[str, Any]:
    """Return what a line says of a script's arguments, by key; None for those that it leaves open.

    Args:
        text: the script.
        line: the command that starts it, placeholders included.
    """
    return {each.argument.key: _value_of(each) for each in _said_in(text, line)}


def with_value(text: str, line: str, key: str, value: Any) -> str:
    """Return a line that says another value of an argument where it says one; else the line as it is."""
    *_, last = (None, *(each for each in _said_in(text, line) if each.argument.key == key))
    word = python_word(value)
    if last is None or last.text is None or word is None:
        return line
    return f"{line[: last.begin]}{shlex.quote(word)}{line[last.end :]}"


def _said_in(text: str, line: str) -> Iterator[_Said]:
    declared = {flag: each for each in arguments_in(text) for flag in (*each.flags, *each.negated_flags)}
    words = [(each.start(), each[0]) for each in _WORD.finditer(line)]
    for number, (begin, word) in enumerate(words):
        found = _flag_of(word, declared)
        if found is None:
            continue
        flag, length = found
        argument = declared[flag]
        if argument.is_switch:
            yield _Said(argument=argument, begin=begin, end=begin + len(word), text=None, flag=word)
        elif length < len(word):
            yield _Said(argument=argument, begin=begin + length, end=begin + len(word), text=word[length:], flag=flag)
        elif number + 1 < len(words):
            start, value = words[number + 1]
            yield _Said(argument=argument, begin=start, end=start + len(value), text=value, flag=flag)


def _flag_of(word: str, declared: dict[str, Argument]) -> tuple[str, int] | None:
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
    """Return a value as the script's parser makes it; None where that is not known."""
    if said.text is None:
        return said.argument.value_switched_by(said.flag)
    if "{" in said.text or said.argument.takes_several:
        return None
    make = _TYPES.get(said.argument.type_name or "str")
    try:
        return None if make is None else make(said.text)
    except ValueError:
        return None
