"""Changes to values that a Python config imports: as ``update`` calls, or as assignments to their members."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan.configs.assignments import Assignment
from memplan.configs.keys import contains, differences, get
from memplan.configs.languages.literals import PythonName
from memplan.configs.layout.comments import comment_on
from memplan.configs.layout.python_lines import dict_spelling, entry_lines, grouped, value_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan.configs.documents import Document

_CLASS = re.compile(r"(?:[a-z_]\w*\.)+[A-Z]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where an assignment goes: an expression for an existing container, and the key below it."""

    container: str
    rest: tuple[str, ...]


def update_lines(document: Document, assignments: list[Assignment]) -> list[str]:
    """Return statements such as ``train_dataloader.update(batch_size=8)``, for mmengine's pure-Python style.

    What an imported dict loses is taken out with ``pop``; members of lists are changed in place.
    """
    removed, changed = _split(document, assignments)
    lines = [_pop(key) for key in removed]
    groups: dict[str, list[tuple[_Place, Assignment]]] = {}
    for each in changed:
        place = _place(document, each.key)
        groups.setdefault(place.container, []).append((place, each))
    for container, members in groups.items():
        lines += _update(document, container, members)
    return lines


def member_lines(document: Document, assignments: list[Assignment], *, by_attribute: bool) -> list[str]:
    """Return statements such as ``optimizer.lr = 0.2``, or ``optimizer['lr'] = 0.2`` where attributes may be missing.

    Args:
        document: the config whose values change.
        assignments: the values that change.
        by_attribute: whether dicts have attribute access, as in detectron2's lazy configs.
    """
    removed, changed = _split(document, assignments)
    lines = [f"del {_expression(key.split('.'), by_attribute=by_attribute)}" for key in removed]
    trees: dict[tuple[str, ...], list[Assignment]] = {}
    for each in changed:
        trees.setdefault(_first_missing(document, each.key), []).append(each)
    for parts, members in trees.items():
        target = f"{_expression(list(parts), by_attribute=by_attribute)} = "
        below = grouped((each.key.split(".")[len(parts) :], _with_name(each)) for each in members)
        lines += entry_lines(target, below, document, depth=0)
    return lines


def class_imports(assignments: list[Assignment], document: Document) -> list[str]:
    """Return the imports of the classes that ``type`` arguments are set to."""
    _, changed = _split(document, assignments)
    classes = {each.value for each in changed if _is_class(each)}
    return [f"from {module} import {name}" for module, _, name in (each.rpartition(".") for each in sorted(classes))]


def _split(document: Document, assignments: list[Assignment]) -> tuple[list[str], list[Assignment]]:
    """Turn the replacement of a whole dict into the keys to remove and those to set."""
    removed: list[str] = []
    changed: list[Assignment] = []
    for each in assignments:
        before = get(document.values, each.key)
        if not isinstance(each.value, dict) or not isinstance(before, dict):
            changed.append(each)
            continue
        for key in differences(before, each.value):
            inner = f"{each.key}.{key}"
            if contains(each.value, key):
                changed.append(replace(each, key=inner, value=get(each.value, key)))
            else:
                removed.append(inner)
    return removed, changed


def _pop(key: str) -> str:
    *outer, last = key.split(".")
    return f"{_expression(outer)}.pop({last!r})"


def _place(document: Document, key: str) -> _Place:
    """Split a key after its last list index, or after its first part."""
    parts = key.split(".")
    found = [get(document.values, ".".join(parts[:end])) for end in range(1, len(parts))]
    ends = [end for end, value in enumerate(found, start=1) if isinstance(value, list | tuple)]
    inner = ends[-1] + 1 if ends else 1
    return _Place(container=_expression(parts[:inner]), rest=tuple(parts[inner:]))


def _first_missing(document: Document, key: str) -> tuple[str, ...]:
    parts = key.split(".")
    missing = (end for end in range(1, len(parts)) if not contains(document.values, ".".join(parts[:end])))
    return tuple(parts[: next(missing, len(parts))])


def _update(document: Document, container: str, members: list[tuple[_Place, Assignment]]) -> Iterator[str]:
    """Yield the statement that sets some members of one container."""
    tree = grouped((place.rest, _with_name(each)) for place, each in members)
    if isinstance(tree, Assignment):
        yield from value_lines(f"{container} = ", tree.value, "", 0, comment_on(document, tree))
    elif not contains(document.values, container.partition("[")[0]):
        yield from entry_lines(f"{container} = ", tree, document, depth=0)
    elif len(members) == 1 and all(each.isidentifier() for each in members[0][0].rest):
        opening = "=dict(".join(members[0][0].rest)
        closing = ")" * len(members[0][0].rest)
        each = _with_name(members[0][1])
        yield from value_lines(f"{container}.update({opening}=", each.value, closing, 0, comment_on(document, each))
    else:
        opening, closing, heads = dict_spelling(tree)
        yield f"{container}.update({opening.removeprefix('dict(')}"
        for part, branch in tree.items():
            yield from entry_lines(heads[part], branch, document, depth=1)
        yield f"{closing.removesuffix(')')})"


def _with_name(assignment: Assignment) -> Assignment:
    if not _is_class(assignment):
        return assignment
    return replace(assignment, value=PythonName(assignment.value.rpartition(".")[2]))


def _is_class(assignment: Assignment) -> bool:
    is_type = assignment.key.rpartition(".")[2] == "type"
    return is_type and isinstance(assignment.value, str) and _CLASS.fullmatch(assignment.value) is not None


def _expression(parts: list[str], *, by_attribute: bool = False) -> str:
    first, *rest = parts
    return first + "".join(_member(each, by_attribute=by_attribute) for each in rest)


def _member(part: str, *, by_attribute: bool) -> str:
    if part.isdecimal():
        return f"[{part}]"
    is_name = part.isidentifier() and not keyword.iskeyword(part)
    return f".{part}" if by_attribute and is_name else f"[{part!r}]"
