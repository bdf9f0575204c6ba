"""Resolve what a YAML config is made of: a ``_BASE_`` file, a Hydra defaults list, or the config it is laid over."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan.configs.documents import SourceFile, read_source
from memplan.configs.hydra_defaults import compose, has_defaults
from memplan.configs.keys import merged
from memplan.configs.marker import base_named_in
from memplan.configs.plain_data import as_plain
from memplan.configs.yaml_source import load_yaml
from memplan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

BASE_KEY = "_BASE_"
MAX_DEPTH = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlChain:
    """What a YAML config evaluates to, the other files it is made of, nearest first, and what was left out."""

    values: Any
    inherited: tuple[SourceFile, ...] = ()
    notes: tuple[str, ...] = ()


def read_chain(source: SourceFile, texts: Mapping[str, str], *, above: tuple[Path, ...] = ()) -> YamlChain:
    """Read a YAML file with everything it inherits.

    Args:
        source: the file.
        texts: absolute path -> text to take instead of what is on disk.
        above: the files that led here, the first of which the user named.

    Raises:
        ConfigError: a file cannot be read, or the files inherit in a circle.
    """
    if source.path in above or len(above) > MAX_DEPTH:
        raise ConfigError("it inherits from itself", where=str(above[0]), hint=f"check {source.path.name}")
    notes: list[str] = []
    over = base_named_in(source)
    empty: dict[str, Any] | None = None if over is None else {}
    values = as_plain(load_yaml(source.text, where=str(source.path), empty=empty), notes)
    if not isinstance(values, dict):
        return YamlChain(values=values, notes=tuple(notes))
    named = over if over is not None else values.get(BASE_KEY)
    if isinstance(named, str):
        base_source = read_source(_path_of(named, source), texts=texts)
        base = read_chain(base_source, texts, above=(*above, source.path))
        own = {name: value for name, value in values.items() if name != BASE_KEY}
        return YamlChain(
            values=merged(base.values, own),
            inherited=(base_source, *base.inherited),
            notes=(*base.notes, *notes),
        )
    if has_defaults(values):
        composed = compose(source, values, texts)
        return YamlChain(values=composed.values, inherited=composed.inherited, notes=(*notes, *composed.notes))
    return YamlChain(values=values, notes=tuple(notes))


def _path_of(named: str, source: SourceFile) -> Path:
    if "://" in named:
        raise ConfigError(f"{BASE_KEY} {named!r} is not a file of this machine", where=str(source.path))
    return source.path.parent / Path(named).expanduser()
