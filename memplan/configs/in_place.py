"""Edit a user's file in place: splice each changed value where it is written, and touch nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.configs.keys import contains
from memplan.configs.spans import Edit, Location, Span, splice
from memplan.configs.syntaxes import PYTHON
from memplan.errors import PatchError

if TYPE_CHECKING:
    from memplan.configs.documents import Document
    from memplan.configs.ecosystem import Assignment


def edited_text(document: Document, assignments: list[Assignment]) -> str:
    """Return the file's text with every assignment spliced in.

    Raises:
        PatchError: a value is inherited, computed, or absent where it cannot be added.
    """
    text = document.source.text
    edits, added = [], []
    for each in assignments:
        location = document.syntax.locate(text, each.key)
        if location is None and _can_be_added(document, each.key):
            added.append(_statement(document, each))
        else:
            edits.append(_edit(document, each, location))
    newline = document.source.newline
    if added:
        start = "" if text.endswith("\n") else newline
        end = newline if text.endswith("\n") else ""
        edits.append(Edit(span=Span(start=len(text), end=len(text)), text=start + newline.join(added) + end))
    return splice(text, edits)


def with_followed_names(document: Document, assignments: list[Assignment]) -> list[Assignment]:
    """Add the names through which values are set, which change with them."""
    found = {each.key: each for each in assignments}
    for each in assignments:
        location = document.syntax.locate(document.source.text, each.key)
        for name in () if location is None else location.followed:
            if contains(document.values, name):
                found.setdefault(name, replace(each, key=name))
    return list(found.values())


def stale_comments(document: Document, assignments: list[Assignment]) -> list[str]:
    """Return a note for each comment beside a changed value that states the old one."""
    notes, text = [], document.source.text
    for each in assignments:
        location = document.syntax.locate(text, each.key)
        if location is None or document.syntax.comment_prefix is None:
            continue
        old = text[location.span.start : location.span.end]
        line_end = text.find("\n", location.span.end)
        rest = text[location.span.end : None if line_end < 0 else line_end]
        _, _, comment = rest.partition(document.syntax.comment_prefix)
        if old and re.search(rf"(?<![\w.]){re.escape(old)}(?![\w.])", comment):
            notes.append(f"{document.path.name}:{location.line}: the comment beside {each.key} still says {old}")
    return notes


def _edit(document: Document, assignment: Assignment, location: Location | None) -> Edit:
    where = str(document.path) if location is None else f"{document.path}:{location.line}"
    hint = "let memplan write a child config instead" if document.syntax is PYTHON else "change this value by hand"
    if location is None:
        inherited = contains(document.values, assignment.key)
        reason = "it is inherited from another file" if inherited else "the config does not set it"
        raise PatchError(f"{assignment.key} cannot be edited in place: {reason}", where=where, hint=hint)
    if location.obstacle is not None:
        raise PatchError(f"{assignment.key} cannot be edited in place: {location.obstacle}", where=where, hint=hint)
    if document.syntax.write is None:
        raise PatchError(f"memplan does not write {document.syntax.name} files", where=where, hint=hint)
    text, span = document.source.text, location.span
    written = document.syntax.write(assignment.value, like=text[span.start : span.end])
    follows_colon = span.start == span.end and text[span.start - 1 : span.start] == ":"
    return Edit(span=span, text=f" {written}" if follows_colon else written)


def _can_be_added(document: Document, key: str) -> bool:
    """Whether a value can be a new statement at the end: a Python section that no file of the config sets."""
    return document.syntax is PYTHON and "." not in key and not document.values.get(key)


def _statement(document: Document, assignment: Assignment) -> str:
    write = document.syntax.write
    if write is None:
        raise PatchError(f"memplan does not write {document.syntax.name} files", where=str(document.path))
    return f"{assignment.key} = {write(assignment.value)}"
