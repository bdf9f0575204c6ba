"""memplan's results as JSON text and back, exactly: not-a-number and infinities survive, tuples stay tuples.

Written with Python's own ``NaN`` and ``Infinity``, which readers other than Python's may refuse; what leaves memplan as
``--json`` goes through ``to_dict`` instead.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from memplan.errors import StoreError

T = TypeVar("T")


def to_json(value: object, *, leaving_out: str | None = None) -> str:
    """Write one of memplan's frozen dataclasses as one line of JSON, all fields or all but one."""
    kind: Any = type(value)
    left_out = set() if leaving_out is None else {leaving_out}
    return json.dumps(_adapter(kind).dump_python(value, mode="json", exclude=left_out), separators=(",", ":"))


def from_json(kind: type[T], text: str, **left_out: object) -> T:
    """Read what :func:`to_json` wrote.

    Args:
        kind: class of the value.
        text: what was written.
        left_out: the field that was left out.

    Raises:
        StoreError: the text does not hold a value of this kind; another version of memplan may have written it.
    """
    adapter = _adapter(cast("Any", kind))  # a class can be hashed, which mypy does not see
    try:
        value: T = adapter.validate_python({**json.loads(text), **left_out} if left_out else json.loads(text))
    except (ValidationError, ValueError) as error:
        problem = f"a stored {kind.__name__} cannot be read: {str(error).splitlines()[0]}"
        raise StoreError(problem, hint="it may have been written by another version of memplan") from error
    return value


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
