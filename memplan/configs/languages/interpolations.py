"""Resolve OmegaConf's interpolations, so that a workload function gets the values that a program would.

Rules from OmegaConf 2.3's documentation ("Variable interpolation", "Resolvers"): ``${a.b}`` is taken from the top,
``${.b}`` from the value's own level and each further dot from one level above; a value that is one interpolation keeps
its type; ``${oc.env:NAME,default}`` is the environment's text, ``${oc.decode:...}`` what a text says. Anything else,
such as ``${now:...}``, stays as it is written.
"""

from __future__ import annotations

import os
import re
from typing import Any

from memplan.configs.keys import contains, get, target_of
from memplan.configs.languages.yaml_source import load_yaml

_INNERMOST = re.compile(r"(?<!\\)\$\{([^${}]*)\}")
_WHOLE = re.compile(r"\$\{[^${}]*\}")
_MOST_STEPS = 50
_UNRESOLVED = object()


def resolved(values: dict[str, Any]) -> dict[str, Any]:
    """Return nested values with every interpolation that can be resolved replaced by its value."""
    return {name: _resolved(values, each, (str(name),), frozenset()) for name, each in values.items()}


def _resolved(values: dict[str, Any], value: Any, at: tuple[str, ...], within: frozenset[str]) -> Any:
    """Resolve a value at a key; ``within`` are the keys being resolved, which it must not refer to."""
    if isinstance(value, dict):
        return {name: _resolved(values, each, (*at, str(name)), within) for name, each in value.items()}
    if isinstance(value, list | tuple):
        members = [_resolved(values, each, (*at, str(index)), within) for index, each in enumerate(value)]
        return type(value)(members)
    return _filled(values, value, at, within) if isinstance(value, str) and "${" in value else value


def _filled(values: dict[str, Any], text: str, at: tuple[str, ...], within: frozenset[str]) -> Any:
    """Resolve the innermost interpolations of a text until none is left that can be."""
    within |= {".".join(at)}
    for _ in range(_MOST_STEPS):
        if _WHOLE.fullmatch(text):
            found = _value_of(values, text[2:-1], at, within)
            return text if found is _UNRESOLVED else found
        filled = _INNERMOST.sub(lambda match: _as_text(_value_of(values, match[1], at, within), match[0]), text)
        if filled == text:
            break
        text = filled
    return text


def _value_of(values: dict[str, Any], reference: str, at: tuple[str, ...], within: frozenset[str]) -> Any:
    key = target_of(reference, at)
    if key is None:
        return _of_resolver(reference)
    if not contains(values, key) or key in within or len(within) >= _MOST_STEPS:
        return _UNRESOLVED
    return _resolved(values, get(values, key), tuple(key.split(".")), within | {key})


def _of_resolver(reference: str) -> Any:
    name, _, arguments = reference.partition(":")
    if name.strip() == "oc.decode":
        return load_yaml(arguments, where=reference)
    if name.strip() != "oc.env":
        return _UNRESOLVED
    variable, comma, default = arguments.partition(",")
    if variable.strip() in os.environ:
        return os.environ[variable.strip()]
    return None if default.strip() == "null" else default.strip() if comma else _UNRESOLVED


def _as_text(value: Any, otherwise: str) -> str:
    return otherwise if value is _UNRESOLVED else str(value)
