"""Turn a change of recipe into a patch for the user's config, prove it, and apply it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memplan.configs.child_file import child_path_of, child_text, parent_path_of, shown_before
from memplan.configs.diffs import unified_diff
from memplan.configs.discovery import diff_root
from memplan.configs.documents import digest_of, read_source
from memplan.configs.in_place import edited_text, stale_comments, with_followed_names
from memplan.configs.keys import get, with_value
from memplan.configs.literals import write_python
from memplan.configs.marker import has_marker, marker_edit, marker_line
from memplan.configs.reading import read_config
from memplan.configs.registry import ecosystem_named
from memplan.configs.spans import splice
from memplan.configs.user_config import PatchStyle, RecipeChange, UserConfig
from memplan.configs.verification import verify
from memplan.errors import PatchError
from memplan.results import ConfigPatch, ValueChange
from memplan.textfiles import write_text_atomically

if TYPE_CHECKING:
    from memplan.configs.ecosystem import Assignment
    from memplan.recipe import Recipe


def expressible(config: UserConfig, recipe: Recipe) -> str | None:
    """Return why a config cannot express a recipe; None where it can."""
    return ecosystem_named(config.format_name).obstacle(config, recipe)


def plan_patch(config: UserConfig, change: RecipeChange, *, style: PatchStyle | None = None) -> ConfigPatch:
    """Write a change of recipe as a patch; nothing on disk changes.

    Args:
        config: the config as it was read; its file must not have changed since.
        change: what shall change, and why.
        style: how to write it; None takes the ecosystem's default.

    Returns:
        The patch, verified by loading the patched config back; its diff is empty where nothing differs.

    Raises:
        PatchError: the config cannot express the change, or loading it back shows any other effect than the intended.
    """
    if reason := expressible(config, change.recipe):
        raise PatchError(reason, where=str(config.path), hint="change it by hand, or choose another recipe")
    styles = ecosystem_named(config.format_name).styles
    style = style or styles[0]
    if style is PatchStyle.CHILD and style not in styles:
        raise PatchError(f"{config.format_name} configs cannot inherit", where=str(config.path), hint="edit in place")
    _require_unchanged(config.path, config.document.source.sha256)
    return _child_patch(config, change) if style is PatchStyle.CHILD else _in_place_patch(config, change)


def apply_patch(patch: ConfigPatch) -> None:
    """Write a patch to disk, the whole file or nothing.

    Raises:
        PatchError: the target changed since the patch was planned.
        OutputError: it cannot be written.
    """
    target = Path(patch.target_path)
    _require_unchanged(target, patch.original_sha256)
    if patch.diff:
        write_text_atomically(target.resolve(), patch.patched_text)


def _require_unchanged(target: Path, sha256: str | None) -> None:
    now = digest_of(target)
    if now == sha256:
        return
    what = "was removed" if now is None else "was created" if sha256 is None else "was changed"
    raise PatchError(f"the file {what} since the patch was planned", where=str(target), hint="plan again")


def _assignments(config: UserConfig, change: RecipeChange) -> list[Assignment]:
    wanted = ecosystem_named(config.format_name).assignments(config, change)
    return [each for each in wanted if each.value != get(config.values, each.key)]


def _in_place_patch(config: UserConfig, change: RecipeChange) -> ConfigPatch:
    document, assignments = config.document, _assignments(config, change)
    text, notes = edited_text(document, assignments), stale_comments(document, assignments)
    if assignments and document.syntax.comment_prefix is not None:
        marker = marker_line(config, change, assignments)
        text = splice(text, [marker_edit(text, marker, newline=document.source.newline)])
    elif assignments:
        notes.append(
            f"{document.syntax.name} has no comments, so the original recipe is not recorded in the file:"
            " a second run takes the patched values as the original"
        )
    changed = with_followed_names(document, assignments)
    return _proven(config, changed, path=config.path, before=document.source.text, text=text, notes=notes)


def _child_patch(config: UserConfig, change: RecipeChange) -> ConfigPatch:
    parent, target = _parent_and_child(config)
    if not _assignments(config, change):
        source = config.document.source
        return _proven(config, [], path=config.path, before=source.text, text=source.text, notes=[])
    assignments = _assignments(parent, change)
    text = child_text(parent, assignments, marker_line(config, change, _assignments(config, change)))
    before = None
    if target.exists():
        before = read_source(target).text
        if not has_marker(before):
            raise PatchError(
                "the file is there already, and not of memplan's making", where=str(target), hint="move it"
            )
    notes = [f"the new name changes the default work_dir to work_dirs/{target.stem}"]
    if options := _option_line(assignments):
        notes.append(f"the same without a new file: {options}")
    return _proven(config, _assignments(config, change), path=target, before=before, text=text, notes=notes)


def _parent_and_child(config: UserConfig) -> tuple[UserConfig, Path]:
    """Return the config to inherit from and the child's path; a child of memplan's is written anew, not nested."""
    parent_path = parent_path_of(config.path)
    is_child = parent_path is not None and parent_path in [each.path for each in config.document.inherited]
    if not is_child or parent_path is None or not has_marker(config.document.source.text):
        return config, child_path_of(config.path)
    declared = {each.name.value: each.key for each in config.knobs if each.key in _declared_keys(config)}
    return read_config(parent_path, format_name=config.format_name, knob_keys=declared), config.path


def _declared_keys(config: UserConfig) -> set[str]:
    own = ecosystem_named(config.format_name).own_keys(config.document)
    return {each.key for each in config.knobs} - {key for found in own.values() for key in found}


def _option_line(assignments: list[Assignment]) -> str | None:
    if not assignments or any(isinstance(each.value, dict | list | tuple) for each in assignments):
        return None
    return "--cfg-options " + " ".join(f"{each.key}={write_python(each.value)}" for each in assignments)


def _proven(
    config: UserConfig, assignments: list[Assignment], *, path: Path, before: str | None, text: str, notes: list[str]
) -> ConfigPatch:
    expected = config.values
    for each in assignments:
        expected = with_value(expected, each.key, each.value)
    package = ecosystem_named(config.format_name).loader_package
    verified_by = verify(path, text, expected, source=config.path, package=package)
    root = diff_root(path)
    return ConfigPatch(
        target_path=str(path),
        original_sha256=digest_of(path),
        patched_text=text,
        diff=unified_diff(before, text, path=path.relative_to(root).as_posix()),
        root_path=str(root),
        changes=tuple(_value_change(config, each) for each in assignments),
        verified_by=verified_by,
        notes=tuple(notes),
    )


def _value_change(config: UserConfig, assignment: Assignment) -> ValueChange:
    return ValueChange(
        key=assignment.key,
        before=shown_before(config, assignment.key),
        after=write_python(assignment.value),
        reason=assignment.reason,
    )
