"""Edit the files of a Hydra tree in place: each value in the group file that sets it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memplan.configs.documents import key_within
from memplan.configs.evaluation.hydra_defaults import primary_values
from memplan.configs.keys import get
from memplan.configs.languages.registry import YAML
from memplan.configs.writing.in_place import edited_text, stale_comments
from memplan.patches import FilePatch

if TYPE_CHECKING:
    from pathlib import Path

    from memplan.configs.assignments import Assignment
    from memplan.configs.documents import Document, SourceFile


def own_assignments(document: Document, assignments: list[Assignment]) -> list[Assignment]:
    """Return the assignments that belong in the config itself."""
    return [each for each in assignments if _file_of(document, each) is document.source]


def group_patches(document: Document, assignments: list[Assignment]) -> tuple[tuple[FilePatch, ...], list[str]]:
    """Return the patches of the group files that set the other values, and what their comments still say.

    Raises:
        PatchError: a value is computed, or absent where it cannot be added.
    """
    by_path: dict[Path, tuple[Document, dict[str, Assignment]]] = {}
    for each in assignments:
        source = _file_of(document, each)
        if source is not document.source:
            key = str(key_within(source, each.key))
            _, inner = by_path.setdefault(source.path, (_part_of(document, source), {}))
            inner.setdefault(key, replace(each, key=key))  # a file may stand at several places of the tree
    patches, notes = [], []
    for path, (part, inner) in by_path.items():
        own = list(inner.values())
        text = edited_text(part, own)
        patches.append(FilePatch(path=str(path), original_text=part.source.text, patched_text=text))
        notes += stale_comments(part, own)
    return tuple(patches), notes


def _part_of(document: Document, source: SourceFile) -> Document:
    values: Any = get(document.values, source.prefix) if source.prefix else document.values
    return replace(document, source=source, values=values, inherited=())


def _file_of(document: Document, assignment: Assignment) -> SourceFile:
    """Return the file that sets a value, or the section that a new one goes into; the config itself where none does."""
    if document.language is not YAML or document.language.locate(document.source.text, assignment.key) is not None:
        return document.source
    if primary_values(document.primary) is None:
        return document.source
    for source in document.inherited:
        key = key_within(source, assignment.key)
        if key is not None and document.language.locate(source.text, key) is not None:
            return source
    section = assignment.key.rpartition(".")[0]
    return next((each for each in document.inherited if each.prefix == section != ""), document.source)
