"""Compose a Hydra config from its defaults list, without running anything.

Rules from Hydra 1.3's documentation ("The Defaults List", "Packages"): entries are merged in order, the later wins, the
file itself where ``_self_`` is, or last; a group's values go below its package, which is the group's path unless
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
_NAMED_CHOICES = 8
_OWN_GROUP = "hydra"


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """Composed values, the other files they come from, those that win first, and what was not followed."""

    values: dict[str, Any]
    inherited: tuple[SourceFile, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The place of a defaults list: its file, its group, and the package below which its values go."""

    source: SourceFile
    group: str = ""
    package: str = ""


@dataclass(slots=True, kw_only=True)
class _Composition:
    """One pass over the tree, with the choices that an earlier pass found to be overridden."""

    root: Path
    texts: Mapping[str, str]
    choices: Mapping[str, Any]
    overridden: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    visits: int = 0
    files: list[SourceFile] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def lay(self, place: _Place, values: Mapping[str, Any]) -> None:
        """Merge a file and what its defaults list names over what was composed so far."""
        self.visits += 1
        if self.visits > _MAX_FILES:
            raise ConfigError("its defaults lists name each other without end", where=str(place.source.path))
        listed = values.get(_DEFAULTS)
        entries = list(listed) if isinstance(listed, list) else []
        for entry in entries if _SELF in entries else [*entries, _SELF]:
            if entry == _SELF:
                own = {name: value for name, value in values.items() if name != _DEFAULTS}
                self.values = merged(self.values, nested_under(place.package, own))
                self.files.append(replace(place.source, prefix=place.package))
            else:
                self._follow(place, entry)

    def _follow(self, place: _Place, entry: Any) -> None:
        name, choice = next(iter(entry.items())) if isinstance(entry, Mapping) and entry else (None, entry)
        if name is None:
            self._include(place, str(choice))
            return
        parsed = _ENTRY.fullmatch(str(name))
        if parsed is None:
            self.notes.append(f"the defaults entry {name!r} was not understood")
            return
        is_absolute = parsed["group"].startswith("/") or not place.group
        group = parsed["group"].lstrip("/") if is_absolute else f"{place.group}/{parsed['group']}"
        if group.split("/")[0] == _OWN_GROUP:
            return
        if parsed["kind"] == "override":
            self.overridden[group] = choice
            return
        choice = self.choices.get(group, choice)
        inner = replace(place, group=group, package=_package_of(parsed["package"], group, place))
        for each in choice if isinstance(choice, list) else [choice]:
            if each is not None:
                has_own_package = parsed["package"] is not None
                self._include(
                    inner, str(each), is_optional=parsed["kind"] == "optional", has_own_package=has_own_package
                )

    def _include(self, place: _Place, choice: str, *, is_optional: bool = False, has_own_package: bool = False) -> None:
        """Merge the file of a choice; a package of the entry's own wins over the one that the file sets."""
        if "${" in choice or choice == "???":
            named = place.group or "the defaults list"
            self.notes.append(f"the choice {choice!r} of {named} is made on the command line")
            return
        is_absolute = choice.startswith("/") or not place.group
        relative = choice.removeprefix("/") if is_absolute else f"{place.group}/{choice}"
        path = self.root / f"{relative.removesuffix('.yaml')}.yaml"
        if not is_there(path, self.texts):
            if not is_optional:
                self.notes.append(
                    f"{place.source.path.name} names {relative}, which is not in {self.root.name}{_others(path)}"
                )
            return
        source = read_source(path, texts=self.texts)
        values = as_plain(load_yaml(source.text, where=str(path), empty={}), self.notes)
        if isinstance(values, list) and place.package:
            self.values = merged(self.values, nested_under(place.package, values))
            return
        group = relative.rpartition("/")[0]
        package = place.package if has_own_package else _own_package(_HEADER.search(source.text), group, place.package)
        self.lay(_Place(source=source, group=group, package=package), require_keys(values, path))


def _others(missing: Path) -> str:
    """Name the choices that a missing one's folder has."""
    found = sorted(each.stem for each in missing.parent.glob("*.yaml"))
    return f": {missing.parent.name} has {', '.join(found[:_NAMED_CHOICES])}" if found else ""


def has_defaults(values: Any) -> bool:
    """Whether a config has a Hydra defaults list."""
    entries = values.get(_DEFAULTS) if isinstance(values, Mapping) else None
    return isinstance(entries, list) and all(isinstance(each, str | Mapping) for each in entries)


def experiment_override(values: Mapping[str, Any], name: str) -> str:
    """Return the command-line override that applies an experiment to a config, after the one it chooses itself."""
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
        composition.lay(_Place(source=source), values)
        if composition.overridden == choices or len(choices) > _MAX_FILES:
            break
        choices = composition.overridden
    others = [each for each in reversed(composition.files) if each.path != source.path]
    kept = {name: value for name, value in composition.values.items() if name != _OWN_GROUP}
    return Composed(values=kept, inherited=tuple(others), notes=tuple(dict.fromkeys(composition.notes)))


def _package_of(named: str | None, group: str, outer: _Place) -> str:
    """Return the package of a group that a defaults list names; ``named`` is the one that the entry says."""
    if named is None:
        is_inner = bool(outer.group) and group.startswith(f"{outer.group}/")
        own = (group.removeprefix(f"{outer.group}/") if is_inner else group).replace("/", ".")
        return ".".join(filter(None, [outer.package, own])) if is_inner or not outer.group else own
    if named.startswith("_global_"):
        return named.removeprefix("_global_").lstrip(".")
    return ".".join(filter(None, [outer.package, "" if named == "_here_" else named]))


def _own_package(header: re.Match[str] | None, group: str, package: str) -> str:
    """Return the package that a file's own ``# @package`` line sets; the one it was given where there is none."""
    if header is None:
        return package
    named = header[1]
    if named.startswith("_global_"):
        return named.removeprefix("_global_").lstrip(".")
    return group.replace("/", ".") if named == "_group_" else named
