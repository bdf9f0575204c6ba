"""Lay out changed values as lines of Python, with a comment behind each."""

from __future__ import annotations

import keyword
from typing import TYPE_CHECKING, Any

from memplan.configs.assignments import Assignment
from memplan.configs.attribute_dict import DELETE_KEY
from memplan.configs.keys import get
from memplan.configs.languages.literals import write_python
from memplan.configs.layout.comments import LEAST_COMMENT, MAX_COLUMNS, comment_on, with_comment
from memplan.configs.layout.whole_lists import WholeList

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memplan.configs.documents import Document

_INDENT = "    "


def grouped(entries: Iterable[tuple[Sequence[str], Any]]) -> Any:
    """Return entries as nested dicts by the parts of their keys; the entry itself where its key has no part."""
    tree: dict[str, Any] = {}
    for parts, entry in entries:
        if not parts:
            return entry
        branch = tree
        for part in parts[:-1]:
            branch = branch.setdefault(part, {})
        branch[parts[-1]] = entry
    return tree


def entry_lines(head: str, tree: Any, document: Document, *, depth: int) -> Iterator[str]:
    """Yield the lines of one key: a changed value with its comment, or a dict of such entries."""
    head, comma = f"{_INDENT * depth}{head}", "," if depth else ""
    if isinstance(tree, WholeList):
        yield from _list_lines(head, tree, document, comma, depth)
    elif isinstance(tree, Assignment) and isinstance(tree.value, dict) and _dict_members(document, tree):
        yield from _dict_lines(head, _dict_members(document, tree), comma, depth, comment_on(document, tree))
    elif isinstance(tree, Assignment):
        yield from value_lines(head, tree.value, comma, depth, comment_on(document, tree))
    else:
        opening, closing, heads = dict_spelling(tree)
        yield f"{head}{opening}"
        for part, branch in tree.items():
            yield from entry_lines(heads[part], branch, document, depth=depth + 1)
        yield f"{_INDENT * depth}{closing}{comma}"


def _list_lines(head: str, whole: WholeList, document: Document, comma: str, depth: int) -> Iterator[str]:
    """Yield a list with a comment behind each member that changes."""
    comments: dict[int, list[str]] = {}
    for each in whole.within:
        place, _, part = whole.inner_key(each).partition(".")
        comments.setdefault(int(place), []).append(f"{part} {comment_on(document, each)}".strip())
    opening, closing = "[]" if isinstance(whole.value, list) else "()"
    yield f"{head}{opening}"
    for index, member in enumerate(whole.value):
        comment = "; ".join(comments.get(index, [])) or None
        yield from value_lines(_INDENT * (depth + 1), member, ",", depth + 1, comment)
    yield f"{_INDENT * depth}{closing}{comma}"


def value_lines(head: str, value: Any, comma: str, depth: int, comment: str | None) -> Iterator[str]:
    """Yield a value on one line where it fits with the beginning of its comment, else a member a line."""
    line = f"{head}{write_python(value)}{comma}"
    fits = len(line) + (LEAST_COMMENT if comment else 0) <= MAX_COLUMNS
    if not fits and isinstance(value, dict) and value:
        yield from _dict_lines(head, value, comma, depth, comment)
    elif not fits and isinstance(value, list | tuple) and value:
        opening, closing = "[]" if isinstance(value, list) else "()"
        yield with_comment(f"{head}{opening}", comment)
        for member in value:
            yield from value_lines(_INDENT * (depth + 1), member, ",", depth + 1, None)
        yield f"{_INDENT * depth}{closing}{comma}"
    else:
        yield with_comment(line, comment)


def _dict_lines(head: str, members: Mapping[str, Any], comma: str, depth: int, comment: str | None) -> Iterator[str]:
    opening, closing, heads = dict_spelling(members)
    yield with_comment(f"{head}{opening}", comment)
    for part, value in members.items():
        yield from value_lines(f"{_INDENT * (depth + 1)}{heads[part]}", value, ",", depth + 1, None)
    yield f"{_INDENT * depth}{closing}{comma}"


def dict_spelling(members: Mapping[str, Any]) -> tuple[str, str, dict[str, str]]:
    """Return what opens a dict, what closes it, and the prefix of each member."""
    if all(each.isidentifier() and not keyword.iskeyword(each) for each in members):
        return "dict(", ")", {each: f"{each}=" for each in members}
    return "{", "}", {each: f"{each!r}: " for each in members}


def _dict_members(document: Document, assignment: Assignment) -> dict[str, Any]:
    before = get(document.values, assignment.key)
    replaces = isinstance(before, dict) and bool(before)
    return {**({DELETE_KEY: True} if replaces else {}), **assignment.value}
