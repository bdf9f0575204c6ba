"""Resolve a YAML config: its ``_BASE_`` file, its Hydra defaults list, or the configs that it overlays.

Files named after a Hydra config are choices of its groups, as ``experiment=long`` is on its command line.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memplan.configs.documents import Document, SourceFile, read_source, require_keys
from memplan.configs.evaluation.hydra_defaults import choices_and_overlays, compose, has_defaults, primary_values
from memplan.configs.evaluation.plain_data import yaml_values
from memplan.configs.keys import merged
from memplan.configs.languages.registry import YAML
from memplan.configs.originals import bases_named_in
from memplan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_YACS_BASE_KEY = "_BASE_"
_MAX_DEPTH = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chain:
    """What a YAML file evaluates to, the other files it is made of, nearest first, and what was left out."""

    values: Any
    inherited: tuple[SourceFile, ...] = ()
    notes: tuple[str, ...] = ()


def read_yaml(source: SourceFile, texts: Mapping[str, str], *, laid_over: Sequence[Path] | None) -> Document:
    """Read a YAML config with everything that it inherits and overlays.

    Args:
        source: the file.
        texts: absolute path -> text to take instead of what is on disk.
        laid_over: what the command line names before it, in order; None for what memplan noted down in the file.

    Raises:
        ConfigError: a file cannot be read or does not hold keys and values, or the files inherit in a circle.
    """
    noted = [source.path.parent / each for each in bases_named_in(source)]
    bases = [read_source(each, texts=texts) for each in (noted if laid_over is None else laid_over)]
    if source.path in (each.path for each in bases):
        raise ConfigError("it is laid over itself", where=str(source.path), hint="name every config once")
    chain = _with_choices((*bases, source), texts) or _with_layers(source, bases, texts)
    return Document(
        source=source,
        language=YAML,
        values=require_keys(chain.values, source.path),
        inherited=chain.inherited,
        laid_over=tuple(each.path for each in bases),
        notes=chain.notes,
    )


def _with_layers(source: SourceFile, bases: Sequence[SourceFile], texts: Mapping[str, str]) -> _Chain:
    """Read a file with what it inherits, laid over other such files."""
    own = _inheriting(source, texts, empty={} if bases else None)
    layers = [(each, _inheriting(each, texts, empty={})) for each in bases]
    return _Chain(
        values=_laid_over([*((each, chain.values) for each, chain in layers), (source, own.values)]),
        inherited=(*own.inherited, *(file for each, chain in reversed(layers) for file in (each, *chain.inherited))),
        notes=(*(note for _, chain in layers for note in chain.notes), *own.notes),
    )


def _with_choices(files: Sequence[SourceFile], texts: Mapping[str, str]) -> _Chain | None:
    """Compose a Hydra config with the files of its groups that the command line chooses; None for any other files.

    An experiment of memplan's own is laid over all that.
    """
    primary, *rest = files
    notes: list[str] = []
    values = primary_values(primary, notes) if rest else None
    if values is None:
        return None
    chosen, over = choices_and_overlays(primary.path.parent, rest)
    if not chosen:
        return None
    composed = compose(primary, values, texts, chosen)
    own = [(each, yaml_values(each, empty={}, notes=notes)) for each in over]
    return _Chain(
        values=_laid_over([(primary, composed.values), *own]),
        inherited=tuple(each for each in (*reversed(over), *composed.files) if each.path != files[-1].path),
        notes=(*notes, *composed.notes),
    )


def laid_over_in_order(files: Sequence[SourceFile]) -> Any:
    """Return the merged values of files that overlay one another and inherit from none."""
    return _laid_over([(each, yaml_values(each, empty={})) for each in files])


def _laid_over(layers: list[tuple[SourceFile, Any]]) -> Any:
    """Merge the values of files into one another, as repeated ``--config`` files are: the later one wins."""
    for source, values in layers[:-1]:
        require_keys(values, source.path)
    return functools.reduce(_appended, (values for _, values in layers), {}) if len(layers) > 1 else layers[0][1]


def _appended(base: Any, over: Any) -> Any:
    """Merge two files' values; what is under ``name+`` is appended to the value of the name (jsonargparse 4)."""
    if not isinstance(over, Mapping):
        return over
    laid = dict(base) if isinstance(base, Mapping) else {}
    for name, value in over.items():
        held = str(name).removesuffix("+")
        if held in ("", str(name)):
            laid[name] = _appended(laid.get(name), value)
        else:
            laid[held] = [*_listed(laid.get(held)), *_listed(value)]
    return laid


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _inheriting(
    source: SourceFile, texts: Mapping[str, str], *, above: tuple[Path, ...] = (), empty: Any = None
) -> _Chain:
    """Read a YAML file with what it names itself; ``above`` are the files that led here."""
    if source.path in above or len(above) > _MAX_DEPTH:
        raise ConfigError("it inherits from itself", where=str(above[0]), hint=f"check {source.path.name}")
    notes: list[str] = []
    values = yaml_values(source, empty=empty, notes=notes)
    if not isinstance(values, dict):
        return _Chain(values=values, notes=tuple(notes))
    named = values.pop(_YACS_BASE_KEY) if isinstance(values.get(_YACS_BASE_KEY), str) else None
    if named is not None:
        base_source = read_source(_path_of(named, source), texts=texts)
        base = _inheriting(base_source, texts, above=(*above, source.path))
        inherited = (base_source, *base.inherited)
        return _Chain(values=merged(base.values, values), inherited=inherited, notes=(*base.notes, *notes))
    if has_defaults(values):
        composed = compose(source, values, texts)
        inherited = tuple(each for each in composed.files if each.path != source.path)
        return _Chain(values=composed.values, inherited=inherited, notes=(*notes, *composed.notes))
    return _Chain(values=values, notes=tuple(notes))


def _path_of(named: str, source: SourceFile) -> Path:
    if "://" in named:
        raise ConfigError(f"{_YACS_BASE_KEY} {named!r} is not a file of this machine", where=str(source.path))
    return source.path.parent / os.path.expanduser(named)  # noqa: PTH111 - pathlib raises for an unknown user
