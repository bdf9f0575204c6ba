"""Split a shell script into commands and their words, with their positions; nothing is run."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from memplan.configs.languages.spans import Span

_GAP = re.compile(r"(?:[ \t]|\\\r?\n)+")
_NESTED = r"\((?:[^()\n]|\((?:[^()\n]|\([^()\n]*\))*\))*\)"  # ``$(a $(b))`` and ``$(((a + b) * 2))``, three deep
_WORD = re.compile(
    rf"""(?:\\[^\r\n]|"(?:[^"\\]|\\.)*"|'[^']*'|`[^`\n]*`|\$\{{[^}}\n]*\}}|\${_NESTED}|[^\s"'\\;&|<>()#`]|(?<=\S)#)+""",
    re.DOTALL,
)
_REDIRECTION = re.compile(r"\d+[<>]")
_COMMENT = re.compile(r"#[^\n]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word of a command as it is written, quotes included."""

    span: Span
    text: str

    @property
    def plain(self) -> str:
        """The word without its quotes; as it is written where they do not match."""
        return plain_word(self.text)


def plain_word(text: str) -> str:
    """Return a word, or the rest of one, without its quotes; as it is written where they do not match."""
    try:
        return " ".join(shlex.split(text)) if set(text) & set("'\"\\") else text
    except ValueError:
        return text


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


def end_of_parentheses(text: str, opening: int, limit: int) -> int | None:
    """Return the position behind the parenthesis that closes an array; None where there is none before the limit."""
    position = opening + 1
    while position < min(limit, len(text)):
        if text[position] in "()":  # an array holds no other
            return position + 1 if text[position] == ")" else None
        passed = _COMMENT.match(text, position) or _WORD.match(text, position)
        position = passed.end() if passed else position + 1
    return None
