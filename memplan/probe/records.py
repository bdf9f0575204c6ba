"""memplan's results as JSON text and back, exactly: not-a-number and infinities survive, tuples stay tuples.

Written with Python's own ``NaN`` and ``Infinity``, which readers other than Python's may refuse; what leaves memplan as
``--json`` goes through :mod:`memplan.json_documents` instead.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from itertools import repeat
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from memplan.errors import MemplanError, StoreError

T = TypeVar("T")


def to_json(value: object, *, leaving_out: str | None = None) -> str:
    """Write one of memplan's frozen dataclasses as one line of JSON, all fields or all but one."""
    stored = {name: each for name, each in _plain(value).items() if name != leaving_out}
    return json.dumps(stored, default=_plain, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a {type(value).__name__} cannot be stored")


def from_json(kind: type[T], text: str, **left_out: object) -> T:
    """Read what :func:`to_json` wrote; names that the class does not have are passed over.

    Args:
        kind: class of the value.
        text: what was written.
        left_out: the field that was left out.

    Raises:
        StoreError: the text does not hold a value of this kind; another version of memplan may have written it.
    """
    try:
        return _made(kind, json.loads(text), left_out)
    except (TypeError, ValueError, MemplanError) as error:
        problem = f"a stored {kind.__name__} cannot be read: {str(error).splitlines()[0]}"
        raise StoreError(problem, hint="it may have been written by another version of memplan") from error


def _made(kind: type[T], stored: Any, given: dict[str, object]) -> T:
    if not isinstance(stored, dict):
        raise TypeError(f"{stored!r} holds no fields")
    hints = _hints(cast("Any", kind))  # a class can be hashed, which mypy does not see
    read = {name: _read(hints[name], each) for name, each in stored.items() if name in hints}
    return kind(**read, **given)


def _read(hint: Any, stored: Any) -> Any:
    """Return a value of the kind that a field's annotation says.

    Raises:
        TypeError: it is of another kind.
        ValueError: it has another length, or is no member of an enumeration.
    """
    if hint is Any or (stored is None and type(None) in get_args(hint)):
        return stored
    if get_origin(hint) in (Union, UnionType):
        (kind,) = (each for each in get_args(hint) if each is not type(None))
        return _read(kind, stored)
    if get_origin(hint) is tuple and isinstance(stored, list):
        first, *others = get_args(hint)
        is_of_any_length = others == [...]
        kinds = repeat(first) if is_of_any_length else (first, *others)
        return tuple(_read(kind, each) for kind, each in zip(kinds, stored, strict=not is_of_any_length))
    if isinstance(hint, type) and is_dataclass(hint):
        return _made(hint, stored, {})
    return _read_scalar(get_origin(hint) or hint, stored)


def _read_scalar(kind: Any, stored: Any) -> Any:
    if issubclass(kind, Enum | Path):
        return kind(stored)
    if kind is float and type(stored) is int:
        return float(stored)
    if type(stored) is not kind:
        raise TypeError(f"{stored!r} is no {kind.__name__}")
    return stored


@cache
def _hints(kind: Any) -> dict[str, Any]:
    known = get_type_hints(kind)
    return {each.name: known[each.name] for each in fields(kind)}
