"""The values of a shell script's variables, as far as it sets them in one place; nothing is run.

A variable has a value where the script gives it one before it is used, once and under no condition, and does nothing
else to it. What the script takes from its environment is looked up in memplan's own, from which the training is taken
to be started.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from memplan.configs.languages.shell_words import Word, commands_in, end_of_parentheses
from memplan.configs.languages.spans import Span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_WORDS = 2_000  # of one command, many times the longest in public scripts
_MAX_HELD = 20_000  # characters of an array or a here-document, also many times the longest
_MAX_HERE_DOCUMENTS = 200
_MAX_FOLLOWED = 20  # variables that stand for one another
_VARIABLE = re.compile(r"\$(?:(?P<bare>\w+)|\{(?P<braced>\w+)(?P<all>\[[@*]\])?(?::?[-=](?P<default>[^}]*))?\})")
_QUOTED = re.compile(r""""(?:[^"\\]|\\.)*"|'[^']*'""", re.DOTALL)
_COMMENT = re.compile(r"#[^\n]*")
_ARGUMENTS = re.compile(r"\"?\$(?:[@*]|\{[@*][^}]*\})\"?")  # what the script itself is given
_GIVES = re.compile(r"\ufeff?(?P<name>[A-Za-z_]\w*)(?P<more>\+?)=")
_GIVES_DEFAULT = re.compile(r"\$\{(?P<name>\w+):?=[^}\n]*\}")
_CALCULATION = re.compile(r"(?<!\$)\(\(([^\n]*?)\)\)")
_CALCULATED = re.compile(r"(?:\+\+|--)(\w+)|(\w+)\s*(?:\+\+|--|(?:<<|>>|[-+*/%&|^])?=(?!=))")
_HERE_DOCUMENT = re.compile(
    rf"(?<!<)<<-?[ \t]*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)[^\n]*\n.{{0,{_MAX_HELD}}}?^[ \t]*(?P=end)[ \t]*\r?$",
    re.DOTALL | re.MULTILINE,
)
_DECLARING = ("export", "declare", "typeset", "local", "readonly")
_TOUCHING = ("unset", "read", "let", "printf", "mapfile", "readarray", "getopts", "for", "select", "eval")
_OPENING, _CLOSING = ("if", "for", "select", "while", "until", "case", "{"), ("fi", "done", "esac", "}")
_LEADING = ("if", "then", "elif", "else", "while", "until", "do", "{", "!", "time")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Assignment:
    """Where a script gives a name a value; ``value`` is None where only running it would show which."""

    start: int
    value: Span | None = None


def assigned_name(word: Word) -> str | None:
    """Return the name of the variable that a word is; None for any other word."""
    variable = _VARIABLE.fullmatch(_unquoted(word))
    return None if variable is None else variable["bare"] or variable["braced"]


def value_of(text: str, name: str) -> Word | None:
    """Return the value of a variable that a script sets in just one place, as written; None where there is none."""
    assigned = _assignments(text).get(name, [])
    span = assigned[0].value if len(assigned) == 1 else None
    return None if span is None else Word(span=span, text=text[span.start : span.end])


def places_left_open(text: str, word: Word) -> tuple[int, ...]:
    """Return where a script gives the variable behind a word a value that only running it would show."""
    for _ in range(_MAX_FOLLOWED):
        name = assigned_name(word)
        value = None if name is None else value_of(text, name)
        if value is None:
            return tuple(each.start for each in _assignments(text).get(name or "", []))
        word = value
    return ()


def expanded(text: str, words: Sequence[Word]) -> list[Word]:
    """Expand variables into the words that they hold (``ARGS="--lr 1 --bf16"``): unquoted ones, for ``eval`` all.

    Arrays (``"${ARGS[@]}"``) are expanded too; the script's own arguments (``"$@"``) are presumed to be none.

    Args:
        text: the script.
        words: a command of it; what it holds beyond ``MAX_WORDS``, or a second time, is left as it is.
    """
    found: list[Word] = []
    waiting, seen = list(reversed(words)), set[str]()
    while waiting:
        word = waiting.pop()
        if _ARGUMENTS.fullmatch(word.text):
            continue
        name, held = assigned_name(word), _held(text, word, is_evaluated=words[0].text == "eval")
        if name is None or name in seen or not 0 < len(held) <= MAX_WORDS - len(found) - len(waiting):
            found.append(word)
        else:
            seen.add(name)
            waiting += reversed(held)
    return found


def literal_behind(text: str, word: Word) -> Word | None:
    """Follow a word that is one variable to the literal that the script gives it; any other word is its own literal.

    None where the script does not say it, or says it more than once, or where the environment says otherwise.
    """
    return _end_of(text, word, frozenset())[0]


def name_left_open(text: str, word: Word) -> str | None:
    """Return the variable that a word leads to and that the script takes from its environment, or None.

    One with a default (``${N:-4}``) is taken from there only where the environment sets it.
    """
    return _end_of(text, word, frozenset())[1]


def value_behind(text: str, word: Word) -> str | None:
    """Return what the program gets for a word; None where neither the script nor the environment says it."""
    literal, left_open = _end_of(text, word, frozenset())
    return os.environ.get(left_open or "") if literal is None else literal.plain


def _end_of(text: str, word: Word, followed: frozenset[str]) -> tuple[Word | None, str | None]:
    """Return the literal at the end of a chain of variables, or the name at which the script leaves it open.

    Args:
        text: the script.
        word: a word of it.
        followed: names that led to it; one that falls back on itself (``N=${N:-4}``) has its default.
    """
    variable = _VARIABLE.fullmatch(_unquoted(word))
    name = assigned_name(word)
    if variable is None or name is None:
        return (None if "$" in word.text or "`" in word.text else word), None
    assigned = [] if name in followed else _assignments(text).get(name, [])
    value = value_of(text, name) if assigned and len(followed) < _MAX_FOLLOWED else None
    if value is not None and value.span.start <= word.span.start and not value.text.startswith("("):
        return _end_of(text, value, followed | {name})
    if assigned or (name.isdecimal() and not variable["default"]):
        return None, None
    if not variable["default"] or os.environ.get(name):
        return None, name
    start = word.span.start + word.text.index(variable[0]) + variable.start("default")
    return Word(span=Span(start=start, end=start + len(variable["default"])), text=variable["default"]), None


def _unquoted(word: Word) -> str:
    return word.text[1:-1] if word.text.startswith('"') else word.text


def _held(text: str, word: Word, *, is_evaluated: bool) -> tuple[Word, ...]:
    """Return the words of the array, or of the quoted text with several, that a script gives a variable."""
    variable, name = _VARIABLE.fullmatch(_unquoted(word)), assigned_name(word)
    value = None if name is None else value_of(text, name)
    if variable is None or value is None:
        return ()
    if value.text.startswith("("):
        return _words_between(text, value.span.start, value.span.end) if variable["all"] else ()
    quoted = _QUOTED.match(text, value.span.start) if is_evaluated or word.text.startswith("$") else None
    held = _words_between(text, quoted.start(), quoted.end()) if quoted else ()
    return held if len(held) > 1 else ()


@lru_cache(maxsize=64)
def _words_between(text: str, opening: int, end: int) -> tuple[Word, ...]:
    """Return the words between a quote or parenthesis and the one that closes it."""
    commands = commands_in(text[opening + 1 : end - 1])
    spans = (each.span for command in commands for each in command)
    found = (Span(start=each.start + opening + 1, end=each.end + opening + 1) for each in spans)
    return tuple(Word(span=each, text=text[each.start : each.end]) for each in found)


@lru_cache(maxsize=8)
def _assignments(text: str) -> dict[str, list[_Assignment]]:
    """Return where a script gives each name a value.

    The text of here-documents is no part of its commands.
    """
    has_some = 0 < text.count("<<") <= _MAX_HERE_DOCUMENTS
    own = _HERE_DOCUMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text) if has_some else text
    found: dict[str, list[_Assignment]] = {}
    for name, assignment in (*_given_by_commands(own), *_given_within(own)):
        found.setdefault(name, []).append(assignment)
    return found


def _given_by_commands(text: str) -> Iterator[tuple[str, _Assignment]]:
    """Yield the names that commands give a value; under a condition, only running them would show it."""
    depth = subshells = end = 0
    for command in commands_in(text):
        between = _COMMENT.sub("", text[end : command[0].span.start])
        end = command[-1].span.end
        subshells = max(0, subshells + between.count("(") - between.count(")"))
        is_linked = between.rstrip().endswith(("&&", "||"))
        words = list(command)
        while words and words[0].text in (*_LEADING, *_OPENING, *_CLOSING):
            depth = max(0, depth + (words[0].text in _OPENING) - (words[0].text in _CLOSING))
            if words[0].text in _TOUCHING:
                break
            words = words[1:]
        if words and words[0].text in _TOUCHING:
            names = ((each.span.start, re.match(r"[A-Za-z_]\w*", each.plain)) for each in words[1:])
            yield from ((each[0], _Assignment(start=start)) for start, each in names if each)
            continue
        gives = [_GIVES.match(each.text) for each in words]
        if all(gives) or (words and words[0].text in _DECLARING):
            pairs = ((word, give) for word, give in zip(words, gives, strict=True) if give)
            is_sure = depth == subshells == 0 and not is_linked
            yield from ((give["name"], _given(text, word, give, is_sure=is_sure)) for word, give in pairs)


def _given(text: str, word: Word, give: re.Match[str], *, is_sure: bool) -> _Assignment:
    start, end = word.span.start + give.end(), word.span.end
    is_array = start == end and text[end : end + 1] == "("
    closed = end_of_parentheses(text, end, end + _MAX_HELD) if is_array else end
    is_open = not is_sure or give["more"] or closed is None
    return _Assignment(
        start=word.span.start, value=None if is_open or closed is None else Span(start=start, end=closed)
    )


def _given_within(text: str) -> Iterator[tuple[str, _Assignment]]:
    """Yield the names that are given a value within words (``${B:=4}``), or calculated with (``((B *= 2))``)."""
    for match in _GIVES_DEFAULT.finditer(text):
        span = Span(start=match.start(), end=match.end())
        yield match["name"], _Assignment(start=span.start, value=span)
    for match in _CALCULATION.finditer(text):
        names = (name[1] or name[2] for name in _CALCULATED.finditer(match[1]))
        yield from ((each, _Assignment(start=match.start())) for each in names)
