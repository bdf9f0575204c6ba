"""Write a child config: a new Python file that inherits from the user's and sets only what changes."""

from __future__ import annotations

import keyword
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memplan.configs.command_lines import as_pairs, bracketed_word
from memplan.configs.ecosystem import Assignment, ChildForm
from memplan.configs.keys import get, with_value
from memplan.configs.literals import write_python
from memplan.configs.python_chain import DELETE_KEY
from memplan.configs.remarks import LEAST_REMARK, MAX_COLUMNS, remark_on, with_remark

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from memplan.configs.documents import Document
    from memplan.configs.user_config import UserConfig

SUFFIX = "_memplan"
_INDENT = "    "


def child_path_of(path: Path) -> Path:
    """Return where the child of a config lies: ``x.py`` -> ``x_memplan.py``."""
    return path.with_name(f"{path.stem}{SUFFIX}{path.suffix}")


def python_child_form(document: Document) -> ChildForm:
    """Return how OpenMMLab's configs inherit."""
    path = child_path_of(document.path)
    note = f"the new name changes the default work_dir to work_dirs/{path.stem}"
    return ChildForm(path=path, head=(f"_base_ = ['./{document.path.name}']", ""), over=None, notes=(note,))


def cfg_options(assignments: Sequence[Assignment]) -> str | None:
    """Return the option of OpenMMLab's train scripts that makes assignments; a dict it cannot say."""
    pairs = as_pairs(assignments, write=bracketed_word)
    return None if pairs is None else f"--cfg-options {pairs}"


def child_text(parent: UserConfig, assignments: list[Assignment], *, head: tuple[str, ...], marker: str) -> str:
    """Return the text of the child config, in the line endings of its parent.

    Args:
        parent: the config it inherits from.
        assignments: the values that differ from the parent's.
        head: lines that come before the values.
        marker: the comment that records what the parent says.
    """
    lines = [f"# Changes to {parent.path.name}, written by memplan.", *head]
    for name, tree in _grouped(_with_whole_lists(parent, assignments)).items():
        lines += _statement(name, tree, parent)
    return parent.document.source.newline.join([*lines, marker, ""])


@dataclass(frozen=True, slots=True, kw_only=True)
class _WholeList:
    """A list that is written whole because one of its members changes, with a remark for each member that does."""

    key: str
    value: list[Any] | tuple[Any, ...]
    remarks: dict[str, str]


def _with_whole_lists(parent: UserConfig, assignments: list[Assignment]) -> list[Assignment | _WholeList]:
    """Gather the assignments to members of one list: inheritance replaces lists whole."""
    found: dict[str, Assignment | _WholeList] = {}
    for each in assignments:
        key = _list_key(parent, each.key)
        if key is None:
            found[each.key] = each
            continue
        gathered = found.setdefault(key, _WholeList(key=key, value=get(parent.values, key), remarks={}))
        index, _, member = each.key.removeprefix(f"{key}.").partition(".")
        remark = f"{member} {remark_on(parent, each)}".strip()
        earlier = gathered.remarks.get(index) if isinstance(gathered, _WholeList) else None
        remarks = {index: f"{earlier}; {remark}" if earlier else remark}
        value = with_value(gathered.value, each.key.removeprefix(f"{key}."), each.value)
        previous = gathered.remarks if isinstance(gathered, _WholeList) else {}
        found[key] = _WholeList(key=key, value=value, remarks=previous | remarks)
    return list(found.values())


def _list_key(parent: UserConfig, key: str) -> str | None:
    """Return the key of the outermost list that a dotted key leads through."""
    parts = key.split(".")
    outer = [".".join(parts[:end]) for end in range(1, len(parts))]
    return next((each for each in outer if isinstance(get(parent.values, each), list | tuple)), None)


def _grouped(assignments: list[Assignment | _WholeList]) -> dict[str, Any]:
    """Return assignments as nested dicts by key part, with the assignment at each leaf."""
    tree: dict[str, Any] = {}
    for each in assignments:
        *outer, last = each.key.split(".")
        branch = tree
        for part in outer:
            branch = branch.setdefault(part, {})
        branch[last] = each
    return tree


def _statement(name: str, tree: Any, parent: UserConfig) -> list[str]:
    return list(_entry(f"{name} = ", tree, parent, depth=0))


def _entry(head: str, tree: Any, parent: UserConfig, *, depth: int) -> Iterator[str]:
    """Yield the lines of one key: a changed value with its remark, or a dict of such entries."""
    head, comma = f"{_INDENT * depth}{head}", "," if depth else ""
    if isinstance(tree, _WholeList):
        yield from _list_lines(head, tree, comma, depth)
    elif isinstance(tree, Assignment) and isinstance(tree.value, dict) and _dict_members(parent, tree):
        yield from _dict_lines(head, _dict_members(parent, tree), comma, depth, remark_on(parent, tree))
    elif isinstance(tree, Assignment):
        yield from _value_lines(head, tree.value, comma, depth, remark_on(parent, tree))
    else:
        opening, closing, heads = _dict_spelling(tree)
        yield f"{head}{opening}"
        for part, branch in tree.items():
            yield from _entry(heads[part], branch, parent, depth=depth + 1)
        yield f"{_INDENT * depth}{closing}{comma}"


def _list_lines(head: str, whole: _WholeList, comma: str, depth: int) -> Iterator[str]:
    opening, closing = "[]" if isinstance(whole.value, list) else "()"
    yield f"{head}{opening}"
    for index, member in enumerate(whole.value):
        yield from _value_lines(_INDENT * (depth + 1), member, ",", depth + 1, whole.remarks.get(str(index)))
    yield f"{_INDENT * depth}{closing}{comma}"


def _value_lines(head: str, value: Any, comma: str, depth: int, remark: str | None) -> Iterator[str]:
    """Yield a value on one line where it fits with the beginning of its remark, else a member a line."""
    line = f"{head}{write_python(value)}{comma}"
    fits = len(line) + (LEAST_REMARK if remark else 0) <= MAX_COLUMNS
    if not fits and isinstance(value, dict) and value:
        yield from _dict_lines(head, value, comma, depth, remark)
    elif not fits and isinstance(value, list | tuple) and value:
        opening, closing = "[]" if isinstance(value, list) else "()"
        yield with_remark(f"{head}{opening}", remark)
        for member in value:
            yield from _value_lines(_INDENT * (depth + 1), member, ",", depth + 1, None)
        yield f"{_INDENT * depth}{closing}{comma}"
    else:
        yield with_remark(line, remark)


def _dict_lines(head: str, members: Mapping[str, Any], comma: str, depth: int, remark: str | None) -> Iterator[str]:
    opening, closing, heads = _dict_spelling(members)
    yield with_remark(f"{head}{opening}", remark)
    for part, value in members.items():
        yield from _value_lines(f"{_INDENT * (depth + 1)}{heads[part]}", value, ",", depth + 1, None)
    yield f"{_INDENT * depth}{closing}{comma}"


def _dict_spelling(members: Mapping[str, Any]) -> tuple[str, str, dict[str, str]]:
    """Return what opens a dict, what closes it, and what stands before each member."""
    if all(each.isidentifier() and not keyword.iskeyword(each) for each in members):
        return "dict(", ")", {each: f"{each}=" for each in members}
    return "{", "}", {each: f"{each!r}: " for each in members}


def _dict_members(parent: UserConfig, assignment: Assignment) -> dict[str, Any]:
    before = get(parent.values, assignment.key)
    replaces = isinstance(before, dict) and bool(before)
    return {**({DELETE_KEY: True} if replaces else {}), **assignment.value}
