"""Turn a change of recipe into a patch for the user's config, and verify it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memplan.configs.ecosystems.registry import ecosystem_named
from memplan.configs.keys import contains, get
from memplan.configs.layout.comments import NOT_SET
from memplan.configs.project_folders import common_root
from memplan.configs.user_config import PatchStyle
from memplan.configs.writing.applying import require_unchanged
from memplan.configs.writing.diffs import unified_diff
from memplan.configs.writing.drafts import default_style, draft_child, draft_companion, draft_flags, draft_in_place
from memplan.configs.writing.verification import verify
from memplan.errors import PatchError
from memplan.patches import ConfigPatch, FilePatch, ValueChange

if TYPE_CHECKING:
    from memplan.configs.assignments import Assignment
    from memplan.configs.user_config import RecipeChange, UserConfig
    from memplan.configs.writing.drafts import Draft
    from memplan.configs.writing.verification import Verification
    from memplan.recipe import Precision, Recipe


def expressible(config: UserConfig, recipe: Recipe, *, on_cpu: bool = False) -> str | None:
    """Return why a config cannot express a recipe, or its programs not train in it on the CPU; None where they can."""
    is_new_on_cpu = on_cpu and recipe.precision != config.recipe.precision
    unusable = obstacle_on_cpu(config, recipe.precision) if is_new_on_cpu else None
    return unusable or ecosystem_named(config.format_name).obstacle(config, recipe)


def obstacle_on_cpu(config: UserConfig, precision: Precision) -> str | None:
    """Return why a config's programs do not train in a precision on the CPU; None where they do."""
    return ecosystem_named(config.format_name).obstacle_on_cpu(config, precision)


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
    require_unchanged(config.path, config.document.source.sha256)
    draft = _DRAFTS[style or default_style(config)](config, change)
    beside = [(each, draft_companion(each, change)) for each in config.companions if not each.within]
    return _joined((config, draft), *beside)


_DRAFTS = {
    PatchStyle.CHILD: draft_child,
    PatchStyle.IN_PLACE: draft_in_place,
    PatchStyle.FLAGS: draft_flags,
}


def _joined(own: tuple[UserConfig, Draft], *beside: tuple[UserConfig, Draft]) -> ConfigPatch:
    """Verify the drafts of a config and its companions, and combine them into one patch."""
    (config, draft), drafts = own, (own, *beside)
    proofs = [_proven(*each) for each in drafts]
    files = tuple(file for _, each in drafts for file in _files_of(each))
    says_all = draft.assignments and not any(each.assignments for _, each in beside)
    root = common_root([config.path, *(Path(each.path) for each in files)])
    return ConfigPatch(
        files=files,
        diff="".join(
            unified_diff(each.original_text, each.patched_text, path=Path(each.path).relative_to(root).as_posix())
            for each in files
        ),
        root_path=str(root),
        changes=tuple(_value_change(*each, assignment) for each in drafts for assignment in each[1].assignments),
        verified_by=_verified_by([each.path.name for each, _ in drafts], [each.loaders for each in proofs]),
        override_line=ecosystem_named(config.format_name).override_line(draft.assignments) if says_all else None,
        notes=(
            *(note for _, each in drafts for note in each.notes),
            *(
                remark
                for each, made in drafts
                for remark in ecosystem_named(each.format_name).remarks_on_patch(each, made.assignments)
            ),
            *(
                f"{key} follows from what changes: {get(each.values, key)} in place of {get(before.values, key)}"
                for (before, _), each in zip(drafts, proofs, strict=True)
                for key in each.following
            ),
        ),
    )


def _verified_by(names: list[str], proofs: list[str]) -> str:
    """Name the loaders that read the files back, and which read which where they differ."""
    if len(set(proofs)) == 1:
        return proofs[0]
    return "; ".join(f"{proof} ({name})" for name, proof in zip(names, proofs, strict=True))


def _proven(config: UserConfig, draft: Draft) -> Verification:
    """Read a draft back."""
    packages = ecosystem_named(config.format_name).loader_packages
    texts = {str(draft.path): draft.text, **{each.path: each.patched_text for each in draft.beside}}
    return verify(draft.path, texts, draft.expected, document=config.document, packages=packages)


def _files_of(draft: Draft) -> tuple[FilePatch, ...]:
    if draft.text == draft.before:
        return ()
    missing = [each for each in draft.path.parents if not each.exists()]
    own = FilePatch(
        path=str(draft.path),
        original_text=draft.before,
        patched_text=draft.text,
        new_folder=str(missing[-1]) if missing else None,
    )
    return (own, *draft.beside)


def _value_change(config: UserConfig, draft: Draft, assignment: Assignment) -> ValueChange:
    write = config.document.language.write
    is_set = contains(config.values, assignment.key)
    return ValueChange(
        path=str(draft.path),
        key=assignment.key,
        before=write(get(config.values, assignment.key)) if is_set else NOT_SET,
        after=write(assignment.value),
        reason=assignment.reason,
        value=assignment.value,
    )
