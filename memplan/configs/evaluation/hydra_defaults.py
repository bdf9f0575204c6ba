"""Compose a Hydra config from its defaults list, without running anything.

Rules from Hydra 1.3's documentation ("The Defaults List", "Packages"): entries are merged in order, the later wins, the
file itself where ``_self_`` is, or last; a group's values go below its package, which is the group's path unless
the entry (``group@package``) or the file's ``# @package`` line says otherwise; ``override`` entries change a choice
made elsewhere, as words of the command line (``experiment=long``) do. Not followed: choices that are interpolations,
other search paths, and structured configs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from memplan.configs.documents import SourceFile, is_there, read_source, require_keys
from memplan.configs.evaluation.plain_data import yaml_values
from memplan.configs.keys import merged, nested_under
from memplan.configs.originals import bases_named_in
from memplan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_DEFAULTS = "defaults"
_SELF = "_self_"
_HEADER = re.compile(r"^[ \t]*#[ \t]*@package[ \t]+(\S+)", re.MULTILINE)
_ENTRY = re.compile(r"(?:(?P<kind>optional|override)\s+)?(?P<group>[^@\s]+)(?:@(?P<package>\S+))?")
_MAX_FILES = 200
_NAMED_CHOICES = 8
_OWN_GROUP = "hydra"
_EXPERIMENT = "experiment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """Composed values, the files they come from, those that win first, and what was not followed."""

    values: dict[str, Any]
    files: tuple[SourceFile, ...]
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
    groups: set[str] = field(default_factory=set)
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
        self.groups.add(group)
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
        values = yaml_values(source, empty={}, notes=self.notes)
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


def primary_values(source: SourceFile, notes: list[str] | None = None) -> dict[str, Any] | None:
    """Return what a file says that has a Hydra defaults list; None for any other file.

    Args:
        source: a YAML file.
        notes: gets a note for each value that is not plain data; None for no notes.
    """
    values = yaml_values(source, empty={}, notes=notes)
    return values if has_defaults(values) else None


def choices_and_overlays(root: Path, files: Sequence[SourceFile]) -> tuple[dict[str, list[str]], list[SourceFile]]:
    """Tell apart what the command line names after a primary config: choices of its groups, and memplan's experiments.

    Returns:
        group -> choices, in their order, and the experiments that memplan lays over all that.

    Raises:
        ConfigError: another file is not in a group of the tree.
    """
    over = [each for each in files if bases_named_in(each)]
    return choices_on_command_line(root, (each.path for each in files if each not in over)), over


def choices_on_command_line(root: Path, files: Iterable[Path]) -> dict[str, list[str]]:
    """Return what the command line chooses where it names files of a tree: group -> choices, in that order.

    Raises:
        ConfigError: a file is not in a group of the tree.
    """
    chosen: dict[str, list[str]] = {}
    for each in files:
        if root not in each.parents or each.parent == root:
            hint = "name the primary config first, and then files of its groups, such as experiment/x.yaml"
            raise ConfigError(f"it is in no group of the configs in {root}", where=str(each), hint=hint)
        chosen.setdefault(each.parent.relative_to(root).as_posix(), []).append(each.stem)
    return chosen


def override_words(values: Mapping[str, Any], chosen: Mapping[str, Sequence[str]], *, overlay: str | None) -> str:
    """Return the words of the command line that make choices, and then an experiment on top of all.

    Args:
        values: the primary config with its defaults list.
        chosen: group -> choices that take the place of its own.
        overlay: the experiment that comes last; None for none.
    """
    own = _own_choices(values)
    names = {group: list(each) for group, each in chosen.items()}
    if overlay is not None:
        names[_EXPERIMENT] = [*names.get(_EXPERIMENT, own.get(_EXPERIMENT, [])), overlay]
    listed = {group: each[0] if len(each) == 1 else f"[{','.join(each)}]" for group, each in names.items()}
    return " ".join(f"{'' if group in own else '+'}{group}={each}" for group, each in listed.items())


def _own_choices(values: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return what a defaults list itself chooses: group -> choices."""
    entries = [each for each in values[_DEFAULTS] if isinstance(each, Mapping) and each]
    named = [next(iter(each.items())) for each in entries]
    return {
        str(group).split()[-1]: [str(each) for each in (of if isinstance(of, list) else [of]) if each is not None]
        for group, of in named
    }


def compose(
    source: SourceFile,
    values: Mapping[str, Any],
    texts: Mapping[str, str],
    chosen: Mapping[str, Sequence[str]] | None = None,
) -> Composed:
    """Compose a config from its defaults list.

    Args:
        source: the primary config.
        values: what it says, its defaults list included.
        texts: absolute path -> text to take instead of what is on disk.
        chosen: group -> choices of the command line; None for none.

    Raises:
        ConfigError: a file that the list names cannot be read or is not a mapping, or a choice is overridden that
            nothing makes.
    """
    given: dict[str, Any] = {group: list(each) for group, each in (chosen or {}).items()}
    choices, made = given, _with_new_choices(values, given)
    while True:
        composition = _Composition(root=source.path.parent, texts=texts, choices=choices)
        composition.lay(_Place(source=source), made)
        if {**composition.overridden, **given} == choices or len(choices) > _MAX_FILES:
            break
        choices = {**composition.overridden, **given}
    for group in composition.overridden:
        if group not in composition.groups:
            raise ConfigError(
                f"its defaults override {group}, which nothing here chooses",
                where=str(source.path),
                hint="name the config that it is laid over first, and then this one",
            )
    kept = {name: value for name, value in composition.values.items() if name != _OWN_GROUP}
    files = tuple(reversed(composition.files))
    return Composed(values=kept, files=files, notes=tuple(dict.fromkeys(composition.notes)))


def _with_new_choices(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Append to a defaults list what ``+group=choice`` on the command line appends."""
    added = [{group: each} for group, each in given.items() if group not in _own_choices(values)]
    return {**values, _DEFAULTS: [*values[_DEFAULTS], *added]}


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
