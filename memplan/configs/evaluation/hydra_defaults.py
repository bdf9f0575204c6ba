"""Compose a Hydra config from its defaults list, without running anything.

Rules from Hydra 1.3's documentation ("The Defaults List", "Packages"): entries are laid over each other in order, the
file itself where ``_self_`` stands, or last; a group's values stand below its package, which is the group's path unless
the entry (``group@package``) or the file's ``# @package`` line says otherwise; ``override`` entries change a choice
made elsewhere. Not followed: choices that are interpolations, other search paths, and structured configs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from memplan.configs.documents import SourceFile, is_there, read_source, require_keys
from memplan.configs.evaluation.plain_data import as_plain
from memplan.configs.keys import merged, nested_under
from memplan.configs.languages.yaml_source import load_yaml
from memplan.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

_DEFAULTS = "defaults"
_SELF = "_self_"
_HEADER = re.compile(r"^[ \t]*#[ \t]*@package[ \t]+(\S+)", re.MULTILINE)
_ENTRY = re.compile(r"(?:(?P<kind>optional|override)\s+)?(?P<group>[^@\s]+)(?:@(?P<package>\S+))?")
_MAX_FILES = 200
_OWN_GROUP = "hydra"


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """Composed values, the files beside the config itself, those that win first, and what was not followed."""

    values: dict[str, Any]
    inherited: tuple[SourceFile, ...]
    notes: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class _Composition:
    root: Path
    texts: Mapping[str, str]
    choices: dict[str, Any]
    found: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    visits: int = 0
    files: list[SourceFile] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def has_defaults(values: Any) -> bool:
    """Say whether a config has a Hydra defaults list."""
    entries = values.get(_DEFAULTS) if isinstance(values, Mapping) else None
    return isinstance(entries, list) and all(isinstance(each, str | Mapping) for each in entries)


def experiment_override(values: Mapping[str, Any], name: str) -> str:
    """Return the command-line override that lays an experiment over a config, behind the one it has chosen itself."""
    for entry in values[_DEFAULTS]:
        group, chosen = next(iter(entry.items()), ("", None)) if isinstance(entry, Mapping) else (entry, None)
        if str(group).split()[-1:] == ["experiment"]:
            before = chosen if isinstance(chosen, list) else [chosen]
            names = [str(each) for each in before if each is not None]
            return f"experiment=[{','.join([*names, name])}]" if names else f"experiment={name}"
    return f"+experiment={name}"


def compose(source: SourceFile, values: Mapping[str, Any], texts: Mapping[str, str]) -> Composed:
    """Compose a config from its defaults list.

    Raises:
        ConfigError: a file that the list names cannot be read or is not a mapping.
    """
    choices: dict[str, Any] = {}
    while True:
        composition = _Composition(root=source.path.parent, texts=texts, choices=choices)
        _lay(composition, source, values, group="", package="")
        if composition.found == choices or len(choices) > _MAX_FILES:
            break
        choices = composition.found
    others = [each for each in reversed(composition.files) if each.path != source.path]
    kept = {name: value for name, value in composition.values.items() if name != _OWN_GROUP}
    return Composed(values=kept, inherited=tuple(others), notes=tuple(dict.fromkeys(composition.notes)))


def _lay(state: _Composition, source: SourceFile, values: Mapping[str, Any], *, group: str, package: str) -> None:
    """Lay a file and what its defaults list names over what was composed so far."""
    state.visits += 1
    if state.visits > _MAX_FILES:
        raise ConfigError("its defaults lists name each other without end", where=str(source.path))
    listed = values.get(_DEFAULTS)
    entries = list(listed) if isinstance(listed, list) else []
    for entry in entries if _SELF in entries else [*entries, _SELF]:
        if entry == _SELF:
            own = {name: value for name, value in values.items() if name != _DEFAULTS}
            state.values = merged(state.values, nested_under(package, own))
            state.files.append(replace(source, prefix=package))
        else:
            _follow(state, entry, source, group=group, package=package)


def _follow(state: _Composition, entry: Any, source: SourceFile, *, group: str, package: str) -> None:
    name, choice = next(iter(entry.items())) if isinstance(entry, Mapping) and entry else (None, entry)
    if name is None:
        _include(state, str(choice), source, group=group, package=package)
        return
    parsed = _ENTRY.fullmatch(str(name))
    if parsed is None:
        state.notes.append(f"the defaults entry {name!r} was not understood")
        return
    inner = (
        parsed["group"].lstrip("/") if parsed["group"].startswith("/") or not group else f"{group}/{parsed['group']}"
    )
    if inner.split("/")[0] == _OWN_GROUP:
        return
    if parsed["kind"] == "override":
        state.found[inner] = choice
        return
    choice = state.choices.get(inner, choice)
    below = _package_of(parsed, group=inner, outer_group=group, outer_package=package)
    for each in choice if isinstance(choice, list) else [choice]:
        if each is not None:
            _include(state, str(each), source, group=inner, package=below, entry=parsed)


def _package_of(parsed: re.Match[str], *, group: str, outer_group: str, outer_package: str) -> str:
    named = parsed["package"]
    if named is None:
        is_inner = bool(outer_group) and group.startswith(f"{outer_group}/")
        own = (group.removeprefix(f"{outer_group}/") if is_inner else group).replace("/", ".")
        return ".".join(filter(None, [outer_package, own])) if is_inner or not outer_group else own
    if named.startswith("_global_"):
        return named.removeprefix("_global_").lstrip(".")
    named = "" if named == "_here_" else named
    return ".".join(filter(None, [outer_package, named]))


def _include(
    state: _Composition,
    choice: str,
    source: SourceFile,
    *,
    group: str,
    package: str,
    entry: re.Match[str] | None = None,
) -> None:
    if "${" in choice or choice == "???":
        state.notes.append(f"the choice {choice!r} of {group or 'the defaults list'} is made on the command line")
        return
    relative = choice.removeprefix("/") if choice.startswith("/") else f"{group}/{choice}" if group else choice
    path = state.root / f"{relative.removesuffix('.yaml')}.yaml"
    if not is_there(path, state.texts):
        if entry is None or entry["kind"] != "optional":
            state.notes.append(f"{source.path.name} names {relative}, which is not in {state.root.name}")
        return
    found = read_source(path, texts=state.texts)
    values = as_plain(load_yaml(found.text, where=str(path), empty={}), state.notes)
    if isinstance(values, list) and package:
        state.values = merged(state.values, nested_under(package, values))
        return
    values = require_keys(values, path)
    inner = relative.rpartition("/")[0]
    is_told = entry is not None and entry["package"] is not None
    below = package if is_told else _told(_HEADER.search(found.text), inner, package)
    _lay(state, found, values, group=inner, package=below)


def _told(header: re.Match[str] | None, group: str, package: str) -> str:
    """Return the package that a file's own ``# @package`` line sets; the one it was given where there is none."""
    if header is None:
        return package
    named = header[1]
    if named.startswith("_global_"):
        return named.removeprefix("_global_").lstrip(".")
    return group.replace("/", ".") if named == "_group_" else named
