"""Take a shell script apart into commands and their words, with their places; nothing is run."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from memplan.configs.languages.spans import Span

if TYPE_CHECKING:
    from collections.abc import Sequence

_GAP = re.compile(r"(?:[ \t]|\\\r?\n)+")
_NESTED = r"\((?:[^()\n]|\((?:[^()\n]|\([^()\n]*\))*\))*\)"  # ``$(a $(b))`` and ``$(((a + b) * 2))``, three deep
_WORD = re.compile(
    rf"""(?:\\[^\r\n]|"(?:[^"\\]|\\.)*"|'[^']*'|`[^`\n]*`|\$\{{[^}}\n]*\}}|\${_NESTED}|[^\s"'\\;&|<>()#`]|(?<=\S)#)+""",
    re.DOTALL,
)
_REDIRECTION = re.compile(r"\d+[<>]")
_QUOTED = re.compile(r""""(?:[^"\\]|\\.)*"|'[^']*'""", re.DOTALL)
_COMMENT = re.compile(r"#[^\n]*")
_VARIABLE = re.compile(r"\$(?:(?P<bare>\w+)|\{(?P<braced>\w+)(?::?-(?P<default>[^}]*))?\})")
_ASSIGNED = re.compile(
    r"""^\ufeff?[ \t]*(?:export[ \t]+)?(?P<name>\w+)=(?P<value>(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^\s;#"'])*)""",
    re.DOTALL | re.MULTILINE,
)
MAX_WORDS = 2_000  # of one command, many times the longest in public scripts


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word of a command as it is written, quotes included."""

    span: Span
    text: str

    @property
    def plain(self) -> str:
        """The word without its quotes; as it is written where they do not match."""
        try:
            return " ".join(shlex.split(self.text)) if set(self.text) & set("'\"\\") else self.text
        except ValueError:
            return self.text


def commands_in(text: str) -> list[list[Word]]:
    """Return the words of each simple command, in order; comments are left out."""
    found: list[list[Word]] = [[]]
    position = 0
    while position < len(text):
        gap = _GAP.match(text, position)
        if gap:
            position = gap.end()
            continue
        comment = _COMMENT.match(text, position)
        word = None if comment or _REDIRECTION.match(text, position) else _WORD.match(text, position)
        if word:
            found[-1].append(Word(span=Span(start=position, end=word.end()), text=word[0]))
        elif not comment and found[-1]:
            found.append([])
        position = comment.end() if comment else word.end() if word else position + 1
    return [each for each in found if each]


def expanded(text: str, words: Sequence[Word]) -> list[Word]:
    """Take the words that variables hold in their place (``ARGS="--lr 1 --bf16"``): unquoted ones, for ``eval`` all.

    Args:
        text: the script.
        words: a command of it; what it holds beyond ``MAX_WORDS``, or a second time, is left as it is.
    """
    found: list[Word] = []
    waiting, seen = list(reversed(words)), set[str]()
    while waiting:
        word = waiting.pop()
        name = assigned_name(word)
        is_split = word.text.startswith("$") or words[0].text == "eval"
        held = _held(text, name) if name is not None and is_split and name not in seen else ()
        if name is None or not 1 < len(held) <= MAX_WORDS - len(found) - len(waiting):
            found.append(word)
        else:
            seen.add(name)
            waiting += reversed(held)
    return found


def _held(text: str, name: str) -> tuple[Word, ...]:
    """Return the words of the one quoted text that a script gives a variable."""
    assigned = _assignments(text).get(name, [])
    return _words_within(text, assigned[0].start) if len(assigned) == 1 else ()


@lru_cache(maxsize=64)
def _words_within(text: str, start: int) -> tuple[Word, ...]:
    quoted = _QUOTED.match(text, start)
    if quoted is None:
        return ()
    commands = commands_in(text[start + 1 : quoted.end() - 1])
    spans = (each.span for command in commands for each in command)
    found = (Span(start=each.start + start + 1, end=each.end + start + 1) for each in spans)
    return tuple(Word(span=each, text=text[each.start : each.end]) for each in found)


@lru_cache(maxsize=8)
def _assignments(text: str) -> dict[str, list[Span]]:
    """Return where a script gives each name a value."""
    found: dict[str, list[Span]] = {}
    for each in _ASSIGNED.finditer(text):
        found.setdefault(each["name"], []).append(Span(start=each.start("value"), end=each.end("value")))
    return found


def assigned_name(word: Word) -> str | None:
    """Return the name of the variable that a word is; None for any other word."""
    variable = _VARIABLE.fullmatch(_unquoted(word))
    return None if variable is None else variable["bare"] or variable["braced"]


def literal_behind(text: str, word: Word) -> Word | None:
    """Follow a word that is one variable to the literal that the script gives it; any other word is its own literal.

    None where the script does not say it, or says it more than once, or where the environment says otherwise.
    """
    return _end_of(text, word, frozenset())[0]


def name_left_open(text: str, word: Word) -> str | None:
    """Return the variable that a word comes down to and that the script takes from its environment, or None.

    One with a default (``${N:-4}``) is taken from there only where the environment sets it.
    """
    return _end_of(text, word, frozenset())[1]


def _end_of(text: str, word: Word, followed: frozenset[str]) -> tuple[Word | None, str | None]:
    """Return the literal at the end of a chain of variables, or the name at which the script leaves it open.

    Args:
        text: the script.
        word: a word of it.
        followed: names that led to it; one that falls back on itself (``N=${N:-4}``) has its default.
    """
    inner, name = _unquoted(word), assigned_name(word)
    if name is None:
        return (None if "$" in word.text or "`" in word.text else word), None
    assigned = [] if name in followed else _assignments(text).get(name, [])
    if len(assigned) == 1:
        value = Word(span=assigned[0], text=text[assigned[0].start : assigned[0].end])
        return _end_of(text, value, followed | {name})
    variable = _VARIABLE.fullmatch(inner)
    if assigned or variable is None:
        return None, None
    if not variable["default"] or os.environ.get(name):
        return None, name
    start = word.span.start + word.text.index(inner) + variable.start("default")
    return Word(span=Span(start=start, end=start + len(variable["default"])), text=variable["default"]), None


def _unquoted(word: Word) -> str:
    return word.text[1:-1] if word.text.startswith('"') else word.text
