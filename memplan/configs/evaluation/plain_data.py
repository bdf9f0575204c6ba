"""Reduce the values of a config to plain data: dicts, lists, tuples, strings, numbers, booleans and None.

An object that holds settings is a dict of its attributes: one of a dataclass or of a class that the config defines, and
any other whose attributes are plain data throughout.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memplan.configs.languages.yaml_source import load_yaml
from memplan.configs.object_access import attributes_of, is_keyed
from memplan.errors import ConfigError

if TYPE_CHECKING:
    from memplan.configs.documents import SourceFile

OWN_MODULE = "memplan_user_config"  # in which a config runs
DEEPEST_OBJECT = 12
_SCALARS = (bool, int, float, str)
_MAX_REPR = 120
_MAX_DEPTH = 200
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def yaml_values(source: SourceFile, *, empty: Any = None, notes: list[str] | None = None) -> Any:
    """Return what a YAML file says; arguments and errors as for ``load_yaml``."""
    where = str(source.path)
    return as_plain(load_yaml(source.text, where=where, empty=empty, notes=notes), notes, where=where)


def as_plain(value: Any, notes: list[str] | None = None, *, where: str) -> Any:
    """Return plain data; anything else becomes its ``repr``.

    Args:
        value: nested values of any kind.
        notes: gets a note for each value that is not plain, by its key; None for no notes.
        where: file, for messages.

    Raises:
        ConfigError: it is nested too deeply, or holds itself.
    """
    try:
        return _plain(value, [] if notes is None else notes, "", 0)
    except RecursionError:
        raise ConfigError("it is nested too deeply", where=where) from None


def settings_in(value: object) -> Mapping[str, Any]:
    """Return the attributes of an object, or its values by key; none for what is no object with settings."""
    if isinstance(value, type):
        return {}
    if is_keyed(value):
        return {str(name): each for name, each in dict(value).items()}  # type: ignore[call-overload]  # dict takes it
    return attributes_of(value) if hasattr(value, "__dict__") else {}


class _NotPlainError(Exception):
    """An object holds something that is not plain."""


def _plain(value: Any, notes: list[str] | None, key: str, depth: int) -> Any:
    if value is None or type(value) in _SCALARS:
        return value
    for kind in _SCALARS:
        if isinstance(value, kind):
            return kind(value)
    if depth > _MAX_DEPTH:
        raise RecursionError(key)
    if isinstance(value, Mapping):
        return {
            _name(name): _plain(each, notes, f"{key}.{name}" if key else str(name), depth + 1)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        members = [_plain(each, notes, f"{key}.{index}", depth + 1) for index, each in enumerate(value)]
        return members if isinstance(value, list) else tuple(members)
    with contextlib.suppress(Exception):  # the code of an object that is no settings may raise anything
        held = settings_in(value) if depth <= DEEPEST_OBJECT else {}
        if held:
            is_declared = dataclasses.is_dataclass(value) or type(value).__module__ == OWN_MODULE
            return _plain(held, notes if is_declared else None, key, depth + 1)
    if notes is None:
        raise _NotPlainError(key)
    shown = _ADDRESS.sub("", repr(value))[:_MAX_REPR]
    notes.append(f"{key} is a {type(value).__name__}, which is passed on as the text {shown!r}")
    return shown


def _name(name: Any) -> Any:
    return name if isinstance(name, str | int | float | bool) or name is None else str(name)
