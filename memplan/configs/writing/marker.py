"""The one comment memplan leaves in a config: what it said before, so that a second run starts from there.

A config in a language without comments has it in a file beside it, ``x.json.memplan``. That file also says which values
memplan wrote, and counts as long as they stand: a config put back, or changed there by hand, is its own original.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memplan.configs.documents import read_source
from memplan.configs.keys import get
from memplan.configs.languages.spans import Edit, Span, appended_lines
from memplan.configs.user_config import OriginalRecipe, RecipeChange, UserConfig
from memplan.errors import ConfigError, PatchError, UsageError
from memplan.patches import FilePatch
from memplan.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from memplan.configs.documents import Document, SourceFile
    from memplan.configs.ecosystem import Assignment

_VERSION = 1
_OVER = "over"
_WRITTEN = "written"
_SIDECAR_SUFFIX = ".memplan"
_SIDECAR_HEAD = "# What {name} said before memplan changed it. Keep this file beside it, which cannot hold comments."
_MARKER = re.compile(r"^#[ \t]*memplan:[ \t]*(\{[^\r\n]*\})[ \t]*(?=\r?$)", re.MULTILINE)
_RECIPE_FIELDS = (
    "micro_batch_size",
    "accumulation_steps",
    "precision",
    "learning_rate",
    "activation_checkpointing",
    "world_size",
)


def find_original(document: Document) -> OriginalRecipe | None:
    """Return what a config said before memplan changed it or a config it inherits from; None where neither happened.

    Raises:
        ConfigError: the marker was damaged.
    """
    for source in (document.source, *document.inherited):
        match = _MARKER.search(source.text)
        if match is not None:
            return _parsed(source, match)
    sidecar = _sidecar_source(document)
    match = None if sidecar is None else _MARKER.search(sidecar.text)
    if sidecar is None or match is None or not _still_stands(document, match):
        return None
    return _parsed(sidecar, match)


def original_within(original: OriginalRecipe | None, section: str) -> OriginalRecipe | None:
    """Return what a section of a config said before, from what its config said."""
    if original is None:
        return None
    start = f"{section}."
    values = {key.removeprefix(start): value for key, value in original.values.items() if key.startswith(start)}
    return replace(original, values=values)


def sidecar_path_of(path: Path) -> Path:
    """Return where the marker of a config without comments lies: ``x.json`` -> ``x.json.memplan``."""
    return path.with_name(f"{path.name}{_SIDECAR_SUFFIX}")


def remark_on_sidecar(document: Document) -> str | None:
    """Say that a marker beside a config is no longer about it; None where it is, or where there is none."""
    sidecar = _sidecar_source(document)
    if sidecar is None or find_original(document) is not None:
        return None
    return f"{sidecar.path.name} is about another state of this file, whose values are taken as the original"


def _sidecar_source(document: Document) -> SourceFile | None:
    path = sidecar_path_of(document.path)
    return read_source(path) if document.syntax.comment_prefix is None and path.is_file() else None


def _still_stands(document: Document, match: re.Match[str]) -> bool:
    try:
        written = json.loads(match[1]).get(_WRITTEN, {})
    except ValueError:
        return True  # what is wrong with it is said where it is read
    return bool(written) and all(get(document.values, key) == value for key, value in written.items())


def sidecar_patch(config: UserConfig, marker: str) -> FilePatch:
    """Return the file beside a config that holds its marker.

    Raises:
        PatchError: there is a file of that name which memplan did not write.
    """
    path = sidecar_path_of(config.path)
    before = read_source(path).text if path.is_file() else None
    if before is not None and not has_marker(before):
        raise PatchError("the file is there already, and not of memplan's making", where=str(path), hint="move it")
    text = f"{_SIDECAR_HEAD.format(name=config.path.name)}\n{marker}\n"
    return FilePatch(path=str(path), original_text=before, patched_text=text)


def bases_named_in(source: SourceFile) -> tuple[str, ...]:
    """Return the relative paths of what an overlay of memplan's is laid over, the nearest last; else none."""
    match = _MARKER.search(source.text)
    if match is None:
        return ()
    try:
        found = json.loads(match[1]).get(_OVER, [])
    except ValueError:
        return ()
    named = found if isinstance(found, list) else [found]
    return tuple(each for each in named if isinstance(each, str))


def has_marker(text: str) -> bool:
    """Say whether memplan wrote or changed a file with this text."""
    return _MARKER.search(text) is not None


def _parsed(source: SourceFile, match: re.Match[str]) -> OriginalRecipe:
    try:
        facts = json.loads(match[1])
        recipe = Recipe(**{name: facts[name] for name in _RECIPE_FIELDS if name in facts})
        return OriginalRecipe(recipe=recipe, values=dict(facts["values"]), options=dict(facts["options"]))
    except (ValueError, KeyError, TypeError, UsageError) as error:
        line = source.text.count("\n", 0, match.start()) + 1
        raise ConfigError(
            f"the memplan comment cannot be read: {error}",
            where=f"{source.path}:{line}",
            hint="restore it, or delete the line to take this config as the original",
        ) from None


def marker_line(
    config: UserConfig,
    change: RecipeChange,
    assignments: list[Assignment],
    *,
    parent: UserConfig,
    over: Sequence[str] = (),
    expected: Mapping[str, Any] | None = None,
) -> str:
    """Return the comment, without line ending.

    Args:
        config: the config that changes, which may have been changed before.
        change: what it carries beside the values.
        assignments: the values that change.
        parent: the config that a child inherits from; the config itself where it is edited in place.
        over: relative paths of the configs that an overlay is laid over by the command line; none for all else.
        expected: what the config is going to evaluate to, where the comment lies in another file; None for all else.
    """
    recipe = config.original.recipe if config.original else config.recipe
    before = {each.key: get(parent.values, each.key) for each in assignments}
    recorded: Mapping[str, Any] = config.original.values if config.original else {}
    values = {**before, **recorded}
    written = {} if expected is None else {_WRITTEN: {key: get(expected, key) for key in values}}
    facts = {
        "version": _VERSION,
        **({_OVER: over[0] if len(over) == 1 else list(over)} if over else {}),
        "global_batch_size": recipe.global_batch_size,
        **_fields_set(recipe),
        "values": values,
        **written,
        "options": dict(change.options),
    }
    return f"# memplan: {json.dumps(facts, default=str)}"


def _fields_set(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe's fields that differ from a recipe of its batch size alone; the precision always."""
    plain = Recipe(micro_batch_size=recipe.micro_batch_size)
    always = ("micro_batch_size", "precision")
    values = {name: getattr(recipe, name) for name in _RECIPE_FIELDS}
    return {name: value for name, value in values.items() if name in always or value != getattr(plain, name)}


def marker_edit(text: str, line: str) -> Edit:
    """Return the edit that replaces the marker of a text, or adds one as its last line."""
    match = _MARKER.search(text)
    if match is not None:
        return Edit(span=Span(start=match.start(), end=match.end()), text=line)
    return appended_lines(text, [line])
