"""The options for memplan that a config and its project set, and the keys that they declare for knobs."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from memplan.configs.keys import is_count, is_number
from memplan.configs.project_folders import PROJECT_FILE
from memplan.configs.user_config import KnobName, MemplanOptions
from memplan.errors import ConfigError, hint_on_names

if TYPE_CHECKING:
    from pathlib import Path

_OPTION_NAMES = tuple(each.name for each in fields(MemplanOptions))


def options_of(config_path: Path, values: Mapping[str, Any]) -> MemplanOptions:
    """Merge ``[tool.memplan]`` of the nearest project file with the config's ``memplan`` section, which wins.

    Raises:
        ConfigError: an option is unknown or of the wrong kind, or the project file is invalid.
    """
    project, project_file = _project_section(config_path)
    own = _set_options(values.get("memplan") or {})
    for section, where in ((project, str(project_file)), (own, str(config_path))):
        _check(section, where)
    merged = {**project, **own, "knobs": {**project.get("knobs", {}), **own.get("knobs", {})}}
    if "precision" in merged:
        named = merged["precision"]
        merged["precision"] = tuple(named.split(",") if isinstance(named, str) else named)
    return MemplanOptions(**merged)


def _set_options(section: Any) -> Any:
    """Leave out options that are null, which is how YAML and JSON say that an option is not set."""
    return {n: value for n, value in section.items() if value is not None} if isinstance(section, Mapping) else section


def knob_names(keys: Mapping[str, str], *, where: str) -> dict[KnobName, tuple[str, ...]]:
    """Turn declared knobs into names and dotted keys.

    Raises:
        ConfigError: there is no knob of that name.
    """
    found: dict[KnobName, tuple[str, ...]] = {}
    for name, key in keys.items():
        if name not in tuple(KnobName):
            raise _unknown("knob", name, tuple(KnobName), where)
        found[KnobName(name)] = tuple(each.strip() for each in key.split(",") if each.strip())
    return found


def _project_section(config_path: Path) -> tuple[dict[str, Any], Path | None]:
    for folder in config_path.parents:
        file = folder / PROJECT_FILE
        if file.is_file():
            try:
                section = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("memplan", {})
            except (OSError, ValueError) as error:
                raise ConfigError(f"the project file cannot be read: {error}", where=str(file)) from None
            return section, file
    return {}, None


def _check(section: Any, where: str) -> None:
    if not isinstance(section, Mapping):
        raise ConfigError(f"memplan = {section!r} is not a section", where=where, hint="write memplan = dict(...)")
    for name, value in section.items():
        if name not in _OPTION_NAMES:
            raise _unknown("memplan option", name, _OPTION_NAMES, where)
        fits, hint = _EXPECTED.get(name, (_is_text, "give it as text"))
        if not fits(value):
            raise ConfigError(f"memplan.{name}={value!r} is not understood", where=where, hint=hint)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return _is_text(value) or (isinstance(value, list | tuple) and all(map(_is_text, value)))


_UTILISATION = (lambda value: is_number(value) and 0 <= value <= 1, "give a number from 0 to 1, such as 0.8")
# Option -> check of its values, and what to write instead of a wrong one; the others are text.
_EXPECTED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "knobs": (
        lambda value: isinstance(value, Mapping) and all(map(_is_text, value.values())),
        'write knobs=dict(micro_batch_size="data.samples_per_gpu")',
    ),
    "max_util": _UTILISATION,
    "min_util": _UTILISATION,
    "precision": (_are_texts, "give it as text"),
    "global_batch": (is_count, "give a whole number"),
    "max_batch": (is_count, "give a whole number"),
    "loader": (lambda value: isinstance(value, bool), "give true or false"),
}


def _unknown(what: str, name: object, known: tuple[str, ...], where: str) -> ConfigError:
    return ConfigError(f"there is no {what} {name!r}", where=where, hint=hint_on_names(str(name), known))
