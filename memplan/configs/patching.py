"""Turn a change of recipe into a patch for the user's config, prove it, and apply it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memplan.configs.diffs import unified_diff
from memplan.configs.discovery import diff_root
from memplan.configs.documents import digest_of
from memplan.configs.drafts import default_style, draft_child, draft_in_place
from memplan.configs.keys import contains, get
from memplan.configs.literals import write_python
from memplan.configs.registry import ecosystem_named
from memplan.configs.remarks import NOT_SET
from memplan.configs.user_config import PatchStyle
from memplan.configs.verification import verify
from memplan.errors import PatchError
from memplan.results import ConfigPatch, ValueChange
from memplan.textfiles import write_text_atomically

if TYPE_CHECKING:
    from memplan.configs.drafts import Draft
    from memplan.configs.ecosystem import Assignment
    from memplan.configs.user_config import RecipeChange, UserConfig
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
    style = style or default_style(config)
    if style is PatchStyle.CHILD and style not in styles:
        raise PatchError(f"{config.format_name} configs cannot inherit", where=str(config.path), hint="edit in place")
    _require_unchanged(config.path, config.document.source.sha256)
    draft = draft_child(config, change) if style is PatchStyle.CHILD else draft_in_place(config, change)
    return _proven(config, draft)


def apply_patch(patch: ConfigPatch) -> None:
    """Write a patch to disk, the whole file or nothing.

    Raises:
        PatchError: the target changed since the patch was planned.
        OutputError: it cannot be written.
    """
    target = Path(patch.target_path)
    _require_unchanged(target, patch.original_sha256)
    if patch.diff:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(target.resolve(), patch.patched_text)


def _require_unchanged(target: Path, sha256: str | None) -> None:
    now = digest_of(target)
    if now == sha256:
        return
    what = "was removed" if now is None else "was created" if sha256 is None else "was changed"
    raise PatchError(f"the file {what} since the patch was planned", where=str(target), hint="plan again")


def _proven(config: UserConfig, draft: Draft) -> ConfigPatch:
    package = ecosystem_named(config.format_name).loader_package
    verified_by = verify(draft.path, draft.text, draft.expected, source=config.path, package=package)
    root = diff_root(draft.path)
    return ConfigPatch(
        target_path=str(draft.path),
        original_sha256=digest_of(draft.path),
        patched_text=draft.text,
        diff=unified_diff(draft.before, draft.text, path=draft.path.relative_to(root).as_posix()),
        root_path=str(root),
        changes=tuple(_value_change(config, each) for each in draft.assignments),
        verified_by=verified_by,
        notes=draft.notes,
    )


def _value_change(config: UserConfig, assignment: Assignment) -> ValueChange:
    write = config.document.syntax.write or write_python
    is_set = contains(config.values, assignment.key)
    return ValueChange(
        key=assignment.key,
        before=write(get(config.values, assignment.key)) if is_set else NOT_SET,
        after=write(assignment.value),
        reason=assignment.reason,
    )
