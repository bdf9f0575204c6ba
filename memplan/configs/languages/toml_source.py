"""Read TOML as plain data, and find where a value is written.

The standard library's reader keeps no positions, so the few forms of TOML 1.0 that values and keys can have are walked
through once more; the result is compared with the standard library's reading when a patch is verified.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from memplan.configs.languages.invalid_text import invalid_text
from memplan.configs.languages.spans import Edit, Location, Span, appended_lines, line_at, line_start, lines_below
from memplan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

_GAP = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BLANK = re.compile(r"[ \t]*")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'', re.DOTALL
)  # three quotes before one, since those begin with it
_BARE_VALUE = re.compile(r"[^,\]}#\r\n]*[^,\]}#\r\n \t]")
_KEY_PART = re.compile(r"[A-Za-z0-9_-]+")
_TABLE = re.compile(r"\[\[?")
_PLACE = re.compile(r"(.*) \(at line (\d+), column \d+\)")  # of tomllib's errors


def load_toml(text: str, *, where: str) -> dict[str, Any]:
    """Read TOML text as plain data.

    Raises:
        ConfigError: it is not valid TOML.
    """
    try:
        return tomllib.loads(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    except ValueError as error:
        said = _PLACE.fullmatch(str(error))
        problem, line = (said[1], int(said[2])) if said else (str(error), None)
        raise invalid_text("TOML", problem, text, where=where, line=line) from None
    except RecursionError:
        raise ConfigError("it is nested too deeply", where=where) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """One ``key = value``: the key's parts from the top, and where the value is."""

    parts: tuple[str, ...]
    span: Span


@dataclass(slots=True)
class _Tables:
    """How often each array of tables has begun, so that ``[[a]]`` is ``a.0``, then ``a.1``."""

    counts: dict[tuple[str, ...], int] = field(default_factory=dict)

    def entered(self, parts: tuple[str, ...], *, is_array: bool) -> tuple[str, ...]:
        outer: tuple[str, ...] = ()
        for depth, part in enumerate(parts):
            outer = (*outer, part)
            is_last = depth == len(parts) - 1
            if is_last and is_array:
                self.counts[outer] = self.counts.get(outer, -1) + 1
            if outer in self.counts:
                outer = (*outer, str(self.counts[outer]))
        return outer


def locate_in_toml(text: str, key: str) -> Location | None:
    """Find the value at a dotted key of a valid TOML text; None where the text does not set it."""
    wanted = tuple(key.split("."))
    for pair in _pairs(text):
        if pair.parts == wanted:
            start = pair.span.start
            return Location(span=pair.span, line=line_at(text, start), obstacle=_obstacle_at(text, start))
    return None


def add_to_toml(text: str, entries: dict[str, str]) -> Edit | None:
    """Return the edit that sets new keys of one table behind its last value; None where there is no such table."""
    sections = {each.rpartition(".")[0] for each in entries}
    section = sections.pop()
    outer = tuple(section.split(".")) if section else ()
    last = [pair for pair in _pairs(text) if pair.parts[:-1] == outer and _is_alone(text, pair.span.start)]
    lines = [f"{name.rpartition('.')[2]} = {literal}" for name, literal in entries.items()]
    if sections or (not last and outer):
        return None
    if not last:
        return None if "[" in text else appended_lines(text, lines)
    start = line_start(text, last[-1].span.start)
    indent = text[start : _BLANK.match(text, start).end()]  # type: ignore[union-attr]  # it matches nothing as well
    return lines_below(text, last[-1].span.end, lines, indent=indent)


def _is_alone(text: str, start: int) -> bool:
    """Whether a pair is on a line of its own, not in an inline table."""
    return "{" not in _STRING.sub("", text[line_start(text, start) : start])


def _obstacle_at(text: str, start: int) -> str | None:
    if text[start] in "[{":
        return "it is not a single value"
    return "it is a block of text" if text.startswith(('"""', "'''"), start) else None


def _pairs(text: str) -> Iterator[_Pair]:
    """Yield every pair of a valid TOML text, those of inline tables and arrays included."""
    tables, position = _Tables(), _skipped(text, int(text.startswith("\ufeff")))
    outer: tuple[str, ...] = ()
    while position < len(text):
        opening = _TABLE.match(text, position)
        if opening:
            parts, position = _key(text, opening.end())
            outer = tables.entered(parts, is_array=len(opening[0]) == 2)
            position += len(opening[0])
        else:
            parts, position = _key(text, position)
            start = _BLANK.match(text, position + 1).end()  # type: ignore[union-attr]  # it matches nothing as well
            end = _end_of_value(text, start)
            yield _Pair(parts=(*outer, *parts), span=Span(start=start, end=end))
            yield from _inner_pairs(text, start, (*outer, *parts))
            position = end
        position = _skipped(text, position)


def _inner_pairs(text: str, start: int, outer: tuple[str, ...]) -> Iterator[_Pair]:
    """Yield the members of an array or an inline table."""
    if text[start] not in "[{":
        return
    position, index = _skipped(text, start + 1), 0
    while text[position] not in "]}":
        parts: tuple[str, ...] = (str(index),)
        if text[start] == "{":
            parts, position = _key(text, position)
            position = _skipped(text, position + 1)
        end = _end_of_value(text, position)
        yield _Pair(parts=(*outer, *parts), span=Span(start=position, end=end))
        yield from _inner_pairs(text, position, (*outer, *parts))
        index += 1
        position = _skipped(text, end)
        if text[position] == ",":
            position = _skipped(text, position + 1)


def _end_of_value(text: str, start: int) -> int:
    string = _STRING.match(text, start)
    if string:
        return string.end()
    if text[start] not in "[{":
        bare = _BARE_VALUE.match(text, start)
        return bare.end() if bare else start
    position = _skipped(text, start + 1)
    while text[position] not in "]}":
        if text[start] == "{":
            position = _skipped(text, _key(text, position)[1] + 1)
        position = _skipped(text, _end_of_value(text, position))
        if text[position] == ",":
            position = _skipped(text, position + 1)
    return position + 1


def _key(text: str, position: int) -> tuple[tuple[str, ...], int]:
    """Return the parts of a dotted key, and the position of what comes behind it."""
    parts: list[str] = []
    while True:
        position = _skipped(text, position)
        quoted = _STRING.match(text, position)
        bare = None if quoted else _KEY_PART.match(text, position)
        found = quoted or bare
        if found is None:
            return tuple(parts), position
        parts.append(tomllib.loads(f"x = {quoted[0]}")["x"] if quoted else found[0])
        position = _BLANK.match(text, found.end()).end()  # type: ignore[union-attr]  # it matches nothing as well
        if text[position : position + 1] != ".":
            return tuple(parts), position
        position += 1


def _skipped(text: str, position: int) -> int:
    match = _GAP.match(text, position)
    return match.end() if match else position
