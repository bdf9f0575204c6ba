"""Dotted keys into nested config values."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_MAX_LISTED_KEYS = 20_000
_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
_MONAI_REFERENCE = re.compile(r"@(\w+(?:(?:#|::)\w+)*)")
_TARGET = re.compile(r"(?P<dots>\.*)(?P<key>[\w\-]+(?:\.[\w\-]+|\[[\w\-]+\])*)")
_FOLLOW_LIMIT = 20
# Sections of a config that are not about training.
_ASIDE = ("val", "eval", "test", "infer", "predict")


def lookup(values: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted key; digits index into lists.

    Raises:
        KeyError: there is no such key.
    """
    found: Any = values
    for part in key.split("."):
        found = _member(found, part)
    return found


def contains(values: Mapping[str, Any], key: str) -> bool:
    """Whether there is a value at a dotted key."""
    try:
        lookup(values, key)
    except KeyError:
        return False
    return True


def followed(values: Mapping[str, Any], key: str) -> str:
    """Return the key that really holds a value: ``${a.b}``, or MONAI's ``@a#b``, is followed to its source."""
    for _ in range(_FOLLOW_LIMIT):
        target = _referred(get(values, key), key)
        if target is None or not contains(values, target):
            return key
        key = target
    return key


def _referred(value: Any, key: str) -> str | None:
    """Return the key that a whole value refers to; None where it is no reference."""
    if not isinstance(value, str):
        return None
    if found := _MONAI_REFERENCE.fullmatch(value):
        return re.sub("#|::", ".", found[1])
    interpolation = _REFERENCE.fullmatch(value)
    return None if interpolation is None else target_of(interpolation[1], tuple(key.split(".")))


def target_of(reference: str, at: tuple[str, ...]) -> str | None:
    """Return the dotted key that the inside of an interpolation names; None where it is a resolver's.

    Args:
        reference: what stands between the braces.
        at: key parts of the value that contains it.
    """
    match = _TARGET.fullmatch(reference.strip())
    if match is None:
        return None
    key = match["key"].replace("[", ".").replace("]", "")
    up = len(match["dots"])
    if up > len(at):
        return None
    return ".".join([*at[: len(at) - up], key]) if up else key


def get(values: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted key, or None where there is none."""
    try:
        return lookup(values, key)
    except KeyError:
        return None


def with_value(values: Any, key: str, new: Any) -> Any:
    """Return a copy of nested values in which one dotted key has a new value; missing parents become dicts."""
    part, _, rest = key.partition(".")
    if isinstance(values, list | tuple):
        index = int(part)
        changed = with_value(values[index], rest, new) if rest else new
        return type(values)([*values[:index], changed, *values[index + 1 :]])
    actual = next((each for each in values if str(each) == part), part)
    child = values.get(actual)
    nested = child if isinstance(child, Mapping | list | tuple) else {}
    return {**values, actual: with_value(nested, rest, new) if rest else new}


def leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values that are no sections, or empty ones, by their dotted keys; names with a dot are left out."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if "." in str(name):
            continue
        inner = leaves(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {}
        found |= inner or {f"{prefix}{name}": value}
    return found


def outermost_list(values: Mapping[str, Any], key: str) -> str | None:
    """Return the key of the outermost list that a dotted key leads through; None where it leads through none."""
    parts = key.split(".")
    outer = (".".join(parts[:end]) for end in range(1, len(parts)))
    return next((each for each in outer if isinstance(get(values, each), list | tuple)), None)


def merged(base: Any, over: Any) -> Any:
    """Return nested dicts with others merged over them; lists and single values are replaced whole."""
    if not isinstance(base, Mapping) or not isinstance(over, Mapping):
        return over
    laid = {name: merged(base[name], value) if name in base else value for name, value in over.items()}
    return {**base, **laid}


def nested_under(prefix: str, values: Any) -> Any:
    """Nest values below a dotted prefix; unchanged where it is empty."""
    found = values
    for part in reversed(prefix.split(".") if prefix else []):
        found = {part: found}
    return found


def near_matches(values: Mapping[str, Any], key: str) -> list[str]:
    """Return up to three existing dotted keys that a mistyped one may have meant."""
    known = list(_dotted(values))
    last = key.rpartition(".")[2]
    same_leaf = [each for each in known if each.rpartition(".")[2] == last]
    return (same_leaf + [each for each in difflib.get_close_matches(key, known, n=3) if each not in same_leaf])[:3]


def keys_named(values: Mapping[str, Any], fits: Callable[[str], bool]) -> list[str]:
    """Return the dotted keys, in the config's order, of the single values whose last part fits."""
    named = (each for each in _dotted(values) if fits(each.rpartition(".")[2]))
    return [each for each in named if isinstance(get(values, each), bool | int | float | str)]


def is_called(name: str, usual: str) -> bool:
    """Whether a name is a usual one in any spelling: in capitals, as ``batchSize``, or with hyphens."""
    return _respelled(name) == _respelled(usual)


def keys_called(values: Mapping[str, Any], usual: str) -> list[str]:
    """Return the keys of one section that have a usual name, in its usual spelling first."""
    return sorted((each for each in values if is_called(str(each), usual)), key=lambda each: each != usual)


def _respelled(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def is_number(value: Any) -> bool:
    """Whether a value is a number; true and false, which Python counts among them, are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    """Whether a value counts something: a whole number above 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def is_number_of_steps(value: Any) -> bool:
    """Whether a value counts steps, also as 1e4; 1.0 and less are shares of something."""
    return is_count(value) or (isinstance(value, float) and value > 1 and value.is_integer())


def is_outside_training(key: str) -> bool:
    """Whether a dotted key lies in a section that is not about training."""
    return any(is_aside(part) for part in key.split(".")[:-1])


def is_aside(name: str) -> bool:
    """Whether a name is that of evaluation or the like, and not of training."""
    return name.lower().startswith(_ASIDE)


def differences(expected: Any, actual: Any, key: str = "") -> Iterator[str]:
    """Yield every dotted key at which two nested values differ, the outermost where one side has no such key.

    1, 1.0 and True are not the same.
    """
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        yield from _differences_of_members(dict(expected), dict(actual), key)
    elif type(expected) is type(actual) and isinstance(expected, list | tuple):
        one, other = ({str(index): each for index, each in enumerate(side)} for side in (expected, actual))
        yield from _differences_of_members(one, other, key)
    else:
        both_nan = expected != expected and actual != actual  # noqa: PLR0124 - only NaN differs from itself
        if type(expected) is not type(actual) or (expected != actual and not both_nan):
            yield key


def _differences_of_members(expected: dict[str, Any], actual: dict[str, Any], key: str) -> Iterator[str]:
    for name in {**expected, **actual}:
        path = f"{key}.{name}" if key else str(name)
        if name in expected and name in actual:
            yield from differences(expected[name], actual[name], path)
        else:
            yield path


def _member(container: Any, part: str) -> Any:
    if isinstance(container, Mapping):
        if part in container:
            return container[part]
        for each, value in container.items():
            if str(each) == part:
                return value
    elif isinstance(container, list | tuple) and part.isdecimal() and int(part) < len(container):
        return container[int(part)]
    raise KeyError(part)


def _dotted(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the dotted keys of sections and values in their order, as many as are worth listing."""
    return itertools.islice(_every_key(values, ""), _MAX_LISTED_KEYS)


def _every_key(values: Any, prefix: str) -> Iterator[str]:
    for name, value in values.items() if isinstance(values, Mapping) else ():
        yield f"{prefix}{name}"
        yield from _every_key(value, f"{prefix}{name}.")
