"""Reduce the values of a config to plain data: dicts, lists, tuples, strings, numbers, booleans and None."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_SCALARS = (bool, int, float, str)
_MAX_REPR = 120
_MAX_DEPTH = 200
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def as_plain(value: Any, notes: list[str] | None = None) -> Any:
    """Return plain data; anything else becomes its ``repr``.

    Args:
        value: nested values of any kind.
        notes: gets a note for each value that is not plain, by its key; None for no notes.

    Raises:
        RecursionError: it is nested too deeply, or holds itself.
    """
    return _plain(value, [] if notes is None else notes, "", 0)


def _plain(value: Any, notes: list[str], key: str, depth: int) -> Any:
    if value is None or type(value) in _SCALARS:
        return value
    for kind in _SCALARS:
        if isinstance(value, kind):
            return kind(value)
    if depth > _MAX_DEPTH:
        raise RecursionError(f"{key} is nested too deeply")
    if isinstance(value, Mapping):
        return {
            _name(name): _plain(each, notes, f"{key}.{name}" if key else str(name), depth + 1)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        members = [_plain(each, notes, f"{key}.{index}", depth + 1) for index, each in enumerate(value)]
        return members if isinstance(value, list) else tuple(members)
    shown = _ADDRESS.sub("", repr(value))[:_MAX_REPR]
    notes.append(f"{key} is a {type(value).__name__}, which is passed on as the text {shown!r}")
    return shown


def _name(name: Any) -> Any:
    return name if isinstance(name, str | int | float | bool) or name is None else str(name)
