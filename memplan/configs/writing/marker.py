"""Writing of the one comment that memplan leaves in a config, or in a file next to one without comments."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from memplan.configs.documents import read_source
from memplan.configs.keys import get
from memplan.configs.languages.spans import Edit, Span, appended_lines
from memplan.configs.originals import MARKER, OVER, RECIPE_FIELDS, WRITTEN, has_marker, sidecar_path_of
from memplan.errors import PatchError
from memplan.patches import FilePatch
from memplan.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan.configs.assignments import Assignment
    from memplan.configs.user_config import RecipeChange, UserConfig

_VERSION = 1
_SIDECAR_HEAD = "# What {name} said before memplan changed it. Keep this file beside it, which cannot hold comments."


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
        over: relative paths of the configs that an overlay goes on top of on the command line; none for all else.
        expected: what the config will evaluate to, where the comment is in another file; None for all else.
    """
    recipe = config.first_recipe
    before = {each.key: get(parent.values, each.key) for each in assignments}
    recorded: Mapping[str, Any] = config.original.values if config.original else {}
    values = {**before, **recorded}
    written = {} if expected is None else {WRITTEN: {key: get(expected, key) for key in values}}
    facts = {
        "version": _VERSION,
        **({OVER: over[0] if len(over) == 1 else list(over)} if over else {}),
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
    values = {name: getattr(recipe, name) for name in RECIPE_FIELDS}
    return {name: value for name, value in values.items() if name in always or value != getattr(plain, name)}


def marker_edit(text: str, line: str) -> Edit:
    """Return the edit that replaces the marker of a text, or adds one as its last line."""
    match = MARKER.search(text)
    if match is not None:
        return Edit(span=Span(start=match.start(), end=match.end()), text=line)
    return appended_lines(text, [line])
