"""Edit a user's file in place: splice each changed value where it is written, and touch nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.configs.keys import contains, get, leaves
from memplan.configs.languages.python_source import is_read_elsewhere
from memplan.configs.languages.python_style import PythonStyle, style_of
from memplan.configs.languages.registry import PYTHON, YAML
from memplan.configs.languages.spans import Edit, appended_lines, line_end, splice
from memplan.configs.layout.python_statements import class_imports, member_lines
from memplan.errors import PatchError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan.configs.assignments import Assignment
    from memplan.configs.documents import Document
    from memplan.configs.languages.spans import Location


def edited_text(document: Document, assignments: list[Assignment]) -> str:
    """Return the file's text with every assignment spliced in.

    Raises:
        PatchError: a value is inherited, computed, or absent where it cannot be added.
    """
    text = document.source.text
    located = {each.key: document.language.locate(text, each.key) for each in assignments}
    late = [each for each in assignments if _is_set_behind(document, each.key, located[each.key])]
    following = _following_by_alias(document, assignments, located)
    rest = [each for each in assignments if each not in late and each.key not in following]
    new = [each for each in rest if _takes_new_line(document, each.key, located[each.key])]
    edits = [_edit(document, each, located[each.key]) for each in rest if each not in new]
    edits += _additions(document, new)
    if late:
        lazy = style_of(text) is PythonStyle.LAZY_CONFIG
        lines = [*class_imports(late, document), *member_lines(document, late, by_attribute=lazy)]
        edits.append(appended_lines(text, lines))
    return splice(text, edits)


def with_followed_names(document: Document, assignments: list[Assignment]) -> list[Assignment]:
    """Add the names through which values are set, since they change with them."""
    found = {each.key: each for each in assignments}
    for each in assignments:
        location = document.language.locate(document.source.text, each.key)
        for name in () if location is None else location.followed:
            if contains(document.values, name):
                found.setdefault(name, replace(each, key=name))
    return list(found.values())


def is_computed(document: Document, key: str) -> bool:
    """Whether a value is written in the file, but not as one that can be replaced."""
    location = document.language.locate(document.source.text, key)
    return location is not None and location.obstacle is not None


def stale_comments(document: Document, assignments: list[Assignment]) -> list[str]:
    """Return a note for each comment beside a changed value that states the old one."""
    notes, text = [], document.source.text
    for each in assignments:
        location = document.language.locate(text, each.key)
        if location is None or document.language.comment_prefix is None:
            continue
        old = text[location.span.start : location.span.end]
        rest = text[location.span.end : line_end(text, location.span.end)]
        _, _, comment = rest.partition(document.language.comment_prefix)
        if old and re.search(rf"(?<![\w.]){re.escape(old)}(?![\w.])", comment):
            notes.append(f"{document.path.name}:{location.line}: the comment beside {each.key} still says {old}")
    return notes


def _is_set_behind(document: Document, key: str, location: Location | None) -> bool:
    """Whether a value is set at the file's end: one that is imported, computed, or used in the file."""
    if document.language is not PYTHON or style_of(document.source.text) is PythonStyle.BASE_LIST:
        return False
    is_own = location is not None and location.obstacle is None
    return not is_own or is_read_elsewhere(document.source.text, key)


def _following_by_alias(
    document: Document, assignments: list[Assignment], located: Mapping[str, Location | None]
) -> set[str]:
    """Return the assigned keys that come to their value by an alias or a merge key, once the rest is edited.

    Raises:
        PatchError: a key that is not assigned would change as well.
    """
    if document.language is not YAML:
        return set()
    written = {place.span: each for each in assignments if (place := located[each.key]) and place.repeats is None}
    wanted, following = {each.key: each.value for each in assignments}, set()
    for key in {**leaves(document.values), **wanted}:
        place = document.language.locate(document.source.text, key)
        source = written.get(place.repeats) if place is not None and place.repeats is not None else None
        if place is None or source is None:
            continue
        if key not in wanted:
            hint = f"write the value of {key} out, or have it follow: --map KNOB={source.key},{key}"
            raise _refusal(document, source, f"{key} repeats its value", line=place.line, hint=hint)
        if wanted[key] == source.value:
            following.add(key)
    return following


def _takes_new_line(document: Document, key: str, location: Location | None) -> bool:
    return not get(document.values, key) if location is None else location.is_added and location.obstacle is None


def _edit(document: Document, assignment: Assignment, location: Location | None) -> Edit:
    if location is None:
        raise _refusal(document, assignment, "it is inherited from another file")
    if location.obstacle is not None:
        raise _refusal(document, assignment, location.obstacle, line=location.line)
    text, span = document.source.text, location.span
    written = document.language.write(assignment.value, like=text[span.start : span.end])
    touches = span.start == span.end and not text[span.start - 1 : span.start].isspace()
    return Edit(span=span, text=f" {written}" if touches else written)


def _additions(document: Document, assignments: list[Assignment]) -> list[Edit]:
    """Return one edit for each section that gets new keys."""
    sections = dict.fromkeys(each.key.rpartition(".")[0] for each in assignments)
    return [
        _addition(document, [each for each in assignments if each.key.rpartition(".")[0] == section])
        for section in sections
    ]


def _addition(document: Document, assignments: list[Assignment]) -> Edit:
    entries = {each.key: document.language.write(each.value) for each in assignments}
    edit = document.language.add(document.source.text, entries)
    if edit is None:
        raise _refusal(document, assignments[0], "the config does not set it")
    return edit


def _refusal(
    document: Document,
    assignment: Assignment,
    reason: str,
    *,
    line: int | None = None,
    hint: str = "change this value by hand",
) -> PatchError:
    return PatchError(
        f"{assignment.key} cannot be edited in place: {reason}",
        where=str(document.path) if line is None else f"{document.path}:{line}",
        hint=hint,
    )
