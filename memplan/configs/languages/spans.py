"""Positions in a text, and the one way text is changed: by replacing spans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.errors import PatchError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Span:
    """Characters ``start`` to ``end`` (exclusive) of a text."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where a value is written in one file.

    Args:
        span: the characters of the value.
        line: line it starts on, from 1.
        obstacle: why it must not be edited there; None where it may be.
        followed: dotted keys of the names that lead to it and change with it.
        repeats: where the value is written that this place repeats; None where it is written here.
        is_added: whether it takes a new line to set it here, since its section has it from another.
    """

    span: Span
    line: int
    obstacle: str | None = None
    followed: tuple[str, ...] = ()
    repeats: Span | None = None
    is_added: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One span and the text that takes its place."""

    span: Span
    text: str


def line_at(text: str, position: int) -> int:
    """Return the line of a position in a text, from 1."""
    return text.count("\n", 0, position) + 1


def line_end(text: str, position: int) -> int:
    """Return where the line of a position ends, its line ending not counted."""
    feed = text.find("\n", position)
    end = len(text) if feed < 0 else feed
    return end - 1 if feed > 0 and text[end - 1] == "\r" else end


def line_start(text: str, position: int) -> int:
    """Return where the line of a position starts."""
    return text.rfind("\n", 0, position) + 1


def line_ending(text: str) -> str:
    """Return the line ending of a text's first line; a line feed where there is none."""
    first, feed, _ = text.partition("\n")
    return "\r\n" if feed and first.endswith("\r") else "\n"


def appended_lines(text: str, lines: list[str]) -> Edit:
    """Return the edit that adds lines at the end of a text, in its line endings, and ends it as it ended before."""
    newline = line_ending(text)
    joined = newline.join(lines)
    end = Span(start=len(text), end=len(text))
    return Edit(span=end, text=f"{joined}{newline}" if text.endswith("\n") else f"{newline}{joined}")


def lines_below(text: str, position: int, lines: list[str], *, indent: str) -> Edit:
    """Return the edit that adds lines below the one of a position."""
    end, gap = line_end(text, position), f"{line_ending(text)}{indent}"
    return Edit(span=Span(start=end, end=end), text="".join(f"{gap}{each}" for each in lines))


def splice(text: str, edits: Iterable[Edit]) -> str:
    """Replace spans of a text and keep every other character.

    Raises:
        PatchError: two edits overlap.
    """
    pieces, position = [], 0
    for edit in sorted(edits, key=lambda each: each.span):
        if edit.span.start < position:
            raise PatchError(
                "two changes fall on the same text", hint="the values are written in one place; change it by hand"
            )
        pieces += [text[position : edit.span.start], edit.text]
        position = edit.span.end
    return "".join([*pieces, text[position:]])
