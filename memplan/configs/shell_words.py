"""Take a shell script apart into commands and their words, with their places; nothing is run or expanded."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from memplan.configs.spans import Span

_GAP = re.compile(r"(?:[ \t]|\\\r?\n)+")
_WORD = re.compile(
    r"""(?:\\[^\r\n]|"(?:[^"\\]|\\.)*"|'[^']*'|\$\{[^}\n]*\}|\$\([^)\n]*\)|[^\s"'\\;&|<>()#]|(?<=\S)#)+""", re.DOTALL
)
_COMMENT = re.compile(r"#[^\n]*")
_VARIABLE = re.compile(r"\$(?:(?P<bare>\w+)|\{(?P<braced>\w+)(?::?-(?P<default>[^}]*))?\})")
_ASSIGNED = r"^\ufeff?[ \t]*(?:export[ \t]+)?{name}=(?P<value>[^\s;#]*)"


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
        word = None if comment else _WORD.match(text, position)
        if word:
            found[-1].append(Word(span=Span(start=position, end=word.end()), text=word[0]))
        elif not comment and found[-1]:
            found.append([])
        position = comment.end() if comment else word.end() if word else position + 1
    return [each for each in found if each]


def literal_behind(text: str, word: Word) -> Word | None:
    """Follow a word that is one variable to the literal that the script gives it; any other word is its own literal.

    Returns:
        The literal; None where the script does not say it, or says it more than once.
    """
    inner = word.text[1:-1] if word.text.startswith('"') else word.text
    variable = _VARIABLE.fullmatch(inner)
    if variable is None:
        return None if "$" in word.text or "`" in word.text else word
    name = re.escape(variable["bare"] or variable["braced"])
    assigned = list(re.finditer(_ASSIGNED.format(name=name), text, re.MULTILINE))
    if len(assigned) == 1:
        found = assigned[0]
        span = Span(start=found.start("value"), end=found.end("value"))
        literal = Word(span=span, text=found["value"])
        return literal_behind(text, literal) if _VARIABLE.fullmatch(found["value"]) is None else None
    if assigned or not variable["default"]:
        return None
    start = word.span.start + word.text.index(inner) + variable.start("default")
    return Word(span=Span(start=start, end=start + len(variable["default"])), text=variable["default"])
