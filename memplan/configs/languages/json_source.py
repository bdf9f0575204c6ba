"""Read JSON as plain data, and find where a value is written."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from memplan.configs.languages.invalid_text import invalid_text
from memplan.configs.languages.spans import Edit, Location, Span, line_at
from memplan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

_SPACE = re.compile(r"[ \t\r\n\ufeff]*")
_SCANNER = json.JSONDecoder()


def load_json(text: str, *, where: str) -> Any:
    """Read JSON text as plain data.

    Raises:
        ConfigError: it is not valid JSON.
    """
    try:
        return json.loads(text.removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        raise invalid_text("JSON", error.msg, text, where=where, line=error.lineno) from None
    except ValueError as error:  # a number with too many digits
        raise ConfigError(f"invalid JSON: {error}", where=where) from None
    except RecursionError:
        raise ConfigError("it is nested too deeply", where=where) from None


def locate_in_json(text: str, key: str) -> Location | None:
    """Find the value at a dotted key of a valid JSON text; of a repeated name the last one counts."""
    start = _skipped(text, 0)
    for part in key.split("."):
        found = None
        for name, position in _members(text, start):
            if name == part:
                found = position
        if found is None:
            return None
        start = found
    obstacle = "it is not a single value" if text[start] in "{[" else None
    return Location(span=Span(start=start, end=_end_of(text, start)), line=line_at(text, start), obstacle=obstacle)


def add_to_json(text: str, entries: dict[str, str]) -> Edit | None:
    """Return the edit that sets new top-level keys after the last one; None where the object is empty."""
    start = _skipped(text, 0)
    positions = [position for _, position in _members(text, start)]
    if not positions or any("." in each for each in entries):
        return None
    separator = text[start + 1 : _skipped(text, start + 1)] or " "
    end = _end_of(text, positions[-1])
    added = "".join(f",{separator}{json.dumps(name)}: {literal}" for name, literal in entries.items())
    return Edit(span=Span(start=end, end=end), text=added)


def _members(text: str, start: int) -> Iterator[tuple[str, int]]:
    if text[start] not in "{[":
        return
    is_object, position, index = text[start] == "{", _skipped(text, start + 1), 0
    while text[position] not in "}]":
        name = str(index)
        if is_object:
            name, end = json.decoder.scanstring(text, position + 1)  # type: ignore[attr-defined]  # not in the stubs
            position = _skipped(text, _skipped(text, end) + 1)
        yield name, position
        index += 1
        position = _skipped(text, _end_of(text, position))
        if text[position] == ",":
            position = _skipped(text, position + 1)


def _end_of(text: str, start: int) -> int:
    return _SCANNER.raw_decode(text, start)[1]


def _skipped(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position
