"""Write a child config: a new Python file that inherits from the user's and sets only what changes."""

from __future__ import annotations

import keyword
from typing import TYPE_CHECKING, Any

from memplan.configs.ecosystem import Assignment
from memplan.configs.keys import contains, get
from memplan.configs.literals import write_python
from memplan.configs.python_chain import DELETE_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from memplan.configs.user_config import UserConfig

SUFFIX = "_memplan"
_INDENT = "    "


def child_path_of(path: Path) -> Path:
    """Return where the child of a config lies: ``x.py`` -> ``x_memplan.py``."""
    return path.with_name(f"{path.stem}{SUFFIX}{path.suffix}")


def parent_path_of(path: Path) -> Path | None:
    """Return the config that a child of memplan's inherits from by its name; None where it has another name."""
    stem = path.stem.removesuffix(SUFFIX)
    return path.with_name(f"{stem}{path.suffix}") if stem not in (path.stem, "") else None


def child_text(parent: UserConfig, assignments: list[Assignment], marker: str) -> str:
    """Return the text of the child config, in the line endings of its parent.

    Args:
        parent: the config it inherits from.
        assignments: the values that differ from the parent's.
        marker: the comment that records what the parent says.
    """
    lines = [f"# Changes to {parent.path.name}, written by memplan.", marker]
    lines += [f"_base_ = ['./{parent.path.name}']", ""]
    for name, tree in _grouped(assignments).items():
        lines += _statement(name, tree, parent)
    return parent.document.source.newline.join([*lines, ""])


def _grouped(assignments: list[Assignment]) -> dict[str, Any]:
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
    lines = list(_member(name, tree, parent, name, depth=0))
    return [lines[0].replace(f"{name}=", f"{name} = ", 1), *lines[1:]]


def _member(name: str, tree: Any, parent: UserConfig, key: str, *, depth: int, quoted: bool = False) -> Iterator[str]:
    indent, comma = _INDENT * depth, "," if depth else ""
    head = f"{name!r}: " if quoted else f"{name}="
    if isinstance(tree, Assignment) and not isinstance(tree.value, dict):
        yield f"{indent}{head}{write_python(tree.value)}{comma}{_remark(parent, tree)}"
        return
    remark = _remark(parent, tree) if isinstance(tree, Assignment) else ""
    members = _dict_members(parent, tree) if isinstance(tree, Assignment) else tree
    braces = not all(each.isidentifier() and not keyword.iskeyword(each) for each in members)
    opening, closing = ("{", "}") if braces else ("dict(", ")")
    if not members:
        yield f"{indent}{head}{opening}{closing}{comma}{remark}"
        return
    yield f"{indent}{head}{opening}{remark}"
    for part, branch in members.items():
        if isinstance(tree, Assignment):
            text = f"{part!r}: " if braces else f"{part}="
            yield f"{indent}{_INDENT}{text}{write_python(branch)},"
        else:
            yield from _member(part, branch, parent, f"{key}.{part}", depth=depth + 1, quoted=braces)
    yield f"{indent}{closing}{comma}"


def _dict_members(parent: UserConfig, assignment: Assignment) -> dict[str, Any]:
    before = get(parent.values, assignment.key)
    replaces = isinstance(before, dict) and bool(before)
    return {**({DELETE_KEY: True} if replaces else {}), **assignment.value}


def _remark(parent: UserConfig, assignment: Assignment) -> str:
    return f"  # was {shown_before(parent, assignment.key)}: {assignment.reason}"


def shown_before(config: UserConfig, key: str) -> str:
    """Return the value a key has before a change, as it would be written; ``not set`` where there is none."""
    return write_python(get(config.values, key)) if contains(config.values, key) else "not set"
