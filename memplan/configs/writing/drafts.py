"""Draft a patch in either style: the new text of one file, and what it must evaluate to."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan.configs.companions import change_beside
from memplan.configs.documents import read_source
from memplan.configs.ecosystems.deepspeed import AUTO
from memplan.configs.ecosystems.ecosystem import LOADER_KNOBS
from memplan.configs.ecosystems.registry import ecosystem_named
from memplan.configs.evaluation.loading import load_document, load_patched, unsteady_keys
from memplan.configs.keys import contains, differences, get, with_value
from memplan.configs.languages.spans import splice
from memplan.configs.originals import bases_named_in, find_original, has_marker
from memplan.configs.reading import read_config
from memplan.configs.user_config import KnobName, PatchStyle
from memplan.configs.writing.group_files import group_patches, own_assignments
from memplan.configs.writing.in_place import edited_text, is_computed, stale_comments, with_followed_names
from memplan.configs.writing.marker import marker_edit, marker_line, sidecar_patch
from memplan.errors import ConfigError, PatchError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memplan.configs.assignments import Assignment, ChildForm
    from memplan.configs.documents import Document
    from memplan.configs.user_config import RecipeChange, UserConfig
    from memplan.patches import FilePatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A patch before it is verified.

    Args:
        path: file it creates or changes.
        before: the file's text; None where it is new.
        text: the file's text after the patch.
        assignments: the values that change against the config as it was read.
        expected: what the patched config must evaluate to.
        notes: what the user should look at.
        beside: other files that change: those of its groups, or the one that records the original where it cannot.
    """

    path: Path
    before: str | None
    text: str
    assignments: tuple[Assignment, ...]
    expected: dict[str, Any]
    notes: tuple[str, ...]
    beside: tuple[FilePatch, ...] = ()


def _changed_assignments(config: UserConfig, change: RecipeChange) -> list[Assignment]:
    """Return the assignments of a change that differ from what the config says."""
    ecosystem = ecosystem_named(config.format_name)
    wanted = [*ecosystem.assignments(config, change), *ecosystem.loader_assignments(config, change)]
    changed = [each for each in wanted if each.value != get(config.values, each.key)]
    sections = (each for each in config.companions if each.within)
    return [
        *_without_computed(config, changed),
        *(
            replace(each, key=f"{section.within}.{each.key}")
            for section in sections
            for each in _agreeing(section, change_beside(section, change))
        ),
    ]


def _without_computed(config: UserConfig, changed: list[Assignment]) -> list[Assignment]:
    """Drop assignments to computed values, unless the micro-batch changes, which they may be computed from."""
    micro, resolved = config.knob(KnobName.MICRO_BATCH_SIZE), config.document.resolved_values
    real = [each for each in changed if each.value != get(resolved, each.key)]
    return changed if micro is not None and any(each.key == micro.key for each in real) else real


def _agreeing(companion: UserConfig, change: RecipeChange) -> list[Assignment]:
    """Return what makes a companion agree with a changed config: the values that it sets, and no others."""
    concrete = [each for each in _changed_assignments(companion, change) if get(companion.values, each.key) != AUTO]
    return [each for each in concrete if contains(companion.values, each.key)]


def default_style(config: UserConfig) -> PatchStyle:
    """Return how a change is written by default: as a child where this config can have one."""
    ecosystem = ecosystem_named(config.format_name)
    has_child = ecosystem.child_form(_parent_document(config)) is not None
    return PatchStyle.CHILD if has_child else ecosystem.childless_style


def draft_in_place(config: UserConfig, change: RecipeChange) -> Draft:
    """Draft an edit of the user's own file.

    Raises:
        PatchError: a value is not written in this file, or cannot be edited there.
    """
    try:
        return _in_place(config, change, _changed_assignments(config, change))
    except PatchError as error:
        if default_style(config) is not PatchStyle.CHILD:
            raise
        raise PatchError(error.problem, where=error.where, hint="let memplan write a child config instead") from None


def draft_flags(config: UserConfig, change: RecipeChange) -> Draft:
    """Draft a change that is made on the command line alone: no file differs."""
    text = config.document.source.text
    return Draft(
        path=config.path,
        before=text,
        text=text,
        assignments=tuple(_changed_assignments(config, change)),
        expected=config.document.values,
        notes=(),
    )


def draft_companion(companion: UserConfig, change: RecipeChange) -> Draft:
    """Draft the edit that makes a file agree with a changed config.

    Raises:
        PatchError: a value cannot be edited.
    """
    own = change_beside(companion, change)
    return _in_place(companion, own, _agreeing(companion, own))


def _in_place(config: UserConfig, change: RecipeChange, assignments: list[Assignment]) -> Draft:
    document = config.document
    assignments = _without_following(document, assignments)
    own = own_assignments(document, assignments)
    text, notes = edited_text(document, own), stale_comments(document, own)
    beside, group_notes = group_patches(document, assignments)
    notes += group_notes
    changed = with_followed_names(document, assignments)
    expected = _with(document.values, changed)
    if assignments and document.language.comment_prefix is not None:
        marker = marker_line(config, change, assignments, parent=config, over=bases_named_in(document.source))
        text = splice(text, [marker_edit(text, marker)])
    elif assignments:
        beside = (sidecar_patch(config, marker_line(config, change, changed, parent=config, expected=expected)),)
        notes.append(f"keep {Path(beside[0].path).name}: by it, a second run knows what the file said before")
    return Draft(
        path=config.path,
        before=document.source.text,
        text=text,
        assignments=tuple(changed),
        expected=expected,
        notes=tuple(notes),
        beside=beside,
    )


def _without_following(document: Document, assignments: list[Assignment]) -> list[Assignment]:
    """Drop assignments to computed values that a config which is run comes to by itself once the rest changes."""
    computed = [each for each in assignments if is_computed(document, each.key)]
    rest = [each for each in assignments if each not in computed]
    if document.language.load is not None or not computed or not rest:
        return assignments
    text = edited_text(document, own_assignments(document, rest))
    try:
        values = load_patched(document, document.path, {str(document.path): text}).values
    except ConfigError:
        return assignments
    return rest if all(_is_equal(get(values, each.key), each.value) for each in computed) else assignments


def _is_equal(found: Any, wanted: Any) -> bool:
    are_numbers = all(isinstance(each, int | float) for each in (found, wanted))
    return math.isclose(found, wanted, rel_tol=1e-9) if are_numbers else bool(found == wanted)


def draft_child(config: UserConfig, change: RecipeChange) -> Draft:
    """Draft a new config that inherits from the user's; a child that memplan wrote before is rewritten.

    Raises:
        PatchError: there is a file of that name with anything in it that memplan did not write.
    """
    changed = _changed_assignments(config, change)
    if not changed:
        return draft_in_place(config, change)
    parent = _parent_of(config)
    assignments = _changed_assignments(parent, replace(change, loader={**_loader_written(config), **change.loader}))
    form = ecosystem_named(config.format_name).child_form(parent.document)
    if form is None:
        raise PatchError(f"{config.format_name} configs cannot inherit", where=str(config.path), hint="edit in place")
    marker = marker_line(config, change, changed, parent=parent, over=form.over)
    return Draft(
        path=form.path,
        before=_own_text(form, parent),
        text=form.write(parent, assignments, head=form.head, marker=marker),
        assignments=tuple(changed),
        expected=_with(parent.values, assignments),
        notes=form.notes,
    )


def _with(values: dict[str, Any], assignments: Iterable[Assignment]) -> dict[str, Any]:
    for each in assignments:
        values = with_value(values, each.key, each.value)
    return values


def _parent_of(config: UserConfig) -> UserConfig:
    """Return the config that memplan's child was made from; the config itself where it is no such child."""
    path, layers = _parent_document(config).path, config.document.laid_over
    if path == config.path:
        return config
    below = layers[: layers.index(path)] if path in layers else ()
    return read_config(*below, path, format_name=config.format_name, knob_keys=_declared(config))


def _parent_document(config: UserConfig) -> Document:
    """Return the config that a child of memplan's was made from: of several on the command line, the last before it."""
    *below, last = config.document.laid_over or (None,)
    for source in config.document.inherited if has_marker(config.document.source.text) else ():
        if last not in (None, source.path):
            continue
        parent = replace(config.document, source=source, laid_over=tuple(below))
        form = ecosystem_named(config.format_name).child_form(parent)
        if form is not None and form.path == config.path:
            return parent
    return config.document


def _declared(config: UserConfig) -> dict[str, str]:
    """Return the knobs that the user declared, as they were given."""
    own = ecosystem_named(config.format_name).all_keys(config.document)
    declared: dict[str, str] = {}
    for each in config.knobs:
        if each.key not in own.get(each.name, ()):
            declared[each.name] = f"{declared[each.name]},{each.key}" if each.name in declared else each.key
    return declared


def _loader_written(config: UserConfig) -> dict[KnobName, int | bool]:
    """Return the loader settings that memplan wrote into a child, which another change does not undo."""
    recorded = config.original.values if config.original else {}
    return {each.name: each.value for each in config.knobs if each.name in LOADER_KNOBS and each.key in recorded}


def _own_text(form: ChildForm, parent: UserConfig) -> str | None:
    """Return the text of an earlier child, after checking that it holds nothing but memplan's own values."""
    target = form.path
    if not target.exists():
        return None
    text = read_source(target).text
    if not has_marker(text):
        raise PatchError("the file is there already, and not of memplan's making", where=str(target), hint="move it")
    child = load_document(target, laid_over=(*parent.document.laid_over, parent.path) if form.over else None)
    original = find_original(child)
    recorded = () if original is None else tuple(original.values)
    unrecorded = [
        key for key in differences(parent.values, child.values) if not any(_same_branch(key, each) for each in recorded)
    ]
    unsteady = unsteady_keys(parent.document) if unrecorded else frozenset()
    for key in unrecorded:
        if key not in unsteady:
            raise PatchError(f"{key} was set by hand in a file that memplan writes", where=str(target), hint="move it")
    return text


def _same_branch(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")
