"""Reading of the one comment that memplan leaves: what a config said before memplan first changed it.

A config in a language without comments has it in a file next to it, ``x.json.memplan``. That file also says which
values memplan wrote, and is valid while they are unchanged: a config restored, or changed there by hand, is its own
original.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from memplan.configs.documents import read_source
from memplan.configs.keys import get
from memplan.configs.languages.spans import line_at
from memplan.configs.user_config import OriginalRecipe
from memplan.errors import ConfigError, UsageError
from memplan.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from memplan.configs.documents import Document, SourceFile

OVER = "over"  # relative paths of what an overlay is laid over
WRITTEN = "written"  # the values that memplan wrote into the file that this marker belongs to
RECIPE_FIELDS = tuple(each.name for each in fields(Recipe))
MARKER = re.compile(r"^#[ \t]*memplan:[ \t]*(\{[^\r\n]*\})[ \t]*(?=\r?$)", re.MULTILINE)
_SIDECAR_SUFFIX = ".memplan"


def find_original(document: Document) -> OriginalRecipe | None:
    """Return what a config said before memplan changed it or a config it inherits from; None where neither happened.

    Raises:
        ConfigError: the marker was damaged.
    """
    marked = next((each for each in (document.source, *document.inherited) if has_marker(each.text)), None)
    if marked is not None:
        return _parsed(marked)
    sidecar = _sidecar_source(document)
    if sidecar is None or not has_marker(sidecar.text):
        return None
    original, written = _parsed(sidecar), _said(sidecar, WRITTEN)
    stands = isinstance(written, dict) and all(get(document.values, key) == value for key, value in written.items())
    return original if stands and written else None


def original_within(original: OriginalRecipe | None, section: str) -> OriginalRecipe | None:
    """Return what a section of a config said before, from what its config said."""
    if original is None:
        return None
    start = f"{section}."
    values = {key.removeprefix(start): value for key, value in original.values.items() if key.startswith(start)}
    return replace(original, values=values)


def sidecar_path_of(path: Path) -> Path:
    """Return the path of the marker of a config without comments: ``x.json`` -> ``x.json.memplan``."""
    return path.with_name(f"{path.name}{_SIDECAR_SUFFIX}")


def remarks_on_sidecar(document: Document) -> Iterator[str]:
    """Point out a marker file that no longer matches its config."""
    sidecar = _sidecar_source(document)
    if sidecar is not None and find_original(document) is None:
        yield f"{sidecar.path.name} is about another state of this file, whose values are taken as the original"


def bases_named_in(source: SourceFile) -> tuple[str, ...]:
    """Return the relative paths of what an overlay of memplan's is laid over, the nearest last; else none."""
    found = _said(source, OVER)
    return tuple(each for each in (found if isinstance(found, list) else [found]) if isinstance(each, str))


def has_marker(text: str) -> bool:
    """Whether memplan wrote or changed a file with this text."""
    return MARKER.search(text) is not None


def _sidecar_source(document: Document) -> SourceFile | None:
    path = sidecar_path_of(document.path)
    return read_source(path) if document.language.comment_prefix is None and path.is_file() else None


def _said(source: SourceFile, name: str) -> Any:
    """Return what a file's marker says under a name; None where there is no marker, or a damaged one."""
    match = MARKER.search(source.text)
    try:
        return None if match is None else json.loads(match[1]).get(name)
    except ValueError:
        return None


def _parsed(source: SourceFile) -> OriginalRecipe:
    match = MARKER.search(source.text)
    try:
        facts = json.loads(match[1] if match else "")
        recipe = Recipe(**{name: facts[name] for name in RECIPE_FIELDS if name in facts})
        return OriginalRecipe(recipe=recipe, values=dict(facts["values"]), options=dict(facts["options"]))
    except (ValueError, KeyError, TypeError, UsageError) as error:
        raise ConfigError(
            f"the memplan comment cannot be read: {error}",
            where=f"{source.path}:{line_at(source.text, match.start() if match else 0)}",
            hint="restore it, or delete the line to take this config as the original",
        ) from None
