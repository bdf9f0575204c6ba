"""Write a child config: a new Python file that inherits from the user's and sets only what changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.configs.assignments import ChildForm, child_path_of
from memplan.configs.languages.python_style import PythonStyle, style_of
from memplan.configs.layout.python_lines import entry_lines, grouped
from memplan.configs.layout.python_statements import class_imports, member_lines, update_lines
from memplan.configs.layout.whole_lists import with_whole_lists

if TYPE_CHECKING:
    from pathlib import Path

    from memplan.configs.assignments import Assignment
    from memplan.configs.documents import Document
    from memplan.configs.user_config import UserConfig


def python_child_form(document: Document) -> ChildForm | None:
    """Return how OpenMMLab's configs inherit; None for a pure-Python config whose file name cannot be imported."""
    path = child_path_of(document.path)
    notes = (_note_on_work_dir(document, path),)
    if style_of(document.source.text) is not PythonStyle.PURE_PYTHON:
        head: tuple[str, ...] = (f"_base_ = ['./{document.path.name}']", "")
        return ChildForm(path=path, write=_child_text, head=head, notes=notes)
    if not document.path.stem.isidentifier():
        return None
    head = ("with read_base():", f"    from .{document.path.stem} import *", "")
    return ChildForm(path=path, write=_updating_child_text, head=head, notes=notes)


def _note_on_work_dir(document: Document, child: Path) -> str:
    """Say where the child's run writes: the train scripts name a folder after the config where it sets none."""
    own = document.values.get("work_dir")
    if own is None:
        return f"the new name changes the default work_dir to work_dirs/{child.stem}"
    return f"the child keeps work_dir={own!r}: its run writes where that of {document.path.name} does"


def _child_text(parent: UserConfig, assignments: list[Assignment], *, head: tuple[str, ...], marker: str) -> str:
    """Return the text of the child config, in the line endings of its parent.

    Args:
        parent: the config it inherits from.
        assignments: the values that differ from the parent's.
        head: lines that come before the values.
        marker: the comment that records what the parent says.
    """
    tree = grouped((each.key.split("."), each) for each in with_whole_lists(parent.values, assignments))
    body = [line for name in tree for line in entry_lines(f"{name} = ", tree[name], parent.document, depth=0)]
    return _file_text(parent, [*head, *body], marker)


def _updating_child_text(
    parent: UserConfig, assignments: list[Assignment], *, head: tuple[str, ...], marker: str
) -> str:
    """Return the text of a child in mmengine's pure-Python style; arguments as in :func:`_child_text`."""
    imports = ["from mmengine.config import read_base", *class_imports(assignments, parent.document)]
    return _file_text(parent, [*imports, "", *head, *update_lines(parent.document, assignments)], marker)


def lazy_child_text(parent: UserConfig, assignments: list[Assignment], *, head: tuple[str, ...], marker: str) -> str:
    """Return the text of a child in the style of detectron2's LazyConfig; arguments as in :func:`_child_text`."""
    lines = member_lines(parent.document, assignments, by_attribute=True)
    return _file_text(parent, [*head, *lines], marker)


def _file_text(parent: UserConfig, lines: list[str], marker: str) -> str:
    first = f"# Changes to {parent.path.name}, written by memplan."
    return parent.document.source.newline.join([first, *lines, marker, ""])
