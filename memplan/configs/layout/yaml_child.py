"""Write a YAML child config: a new file with the changed values only, each with its old value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memplan.configs.assignments import Assignment
from memplan.configs.keys import with_value
from memplan.configs.languages.literals import write_yaml
from memplan.configs.layout.comments import comment_on, with_comment
from memplan.configs.layout.whole_lists import WholeList, with_whole_lists

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan.configs.user_config import UserConfig

_INDENT = "  "
_NOTHING = "{}"  # jsonargparse takes a file of comments alone for a text


def yaml_child_text(parent: UserConfig, assignments: list[Assignment], *, head: tuple[str, ...], marker: str) -> str:
    """Return the text of the child config, in the line endings of its parent.

    Args:
        parent: the config it inherits from or is laid over.
        assignments: the values that differ from the parent's.
        head: lines that come before the values.
        marker: the comment that records what the parent says.

    Raises:
        PatchError: a value cannot be written as YAML.
    """
    tree: dict[str, Any] = {}
    for each in with_whole_lists(parent.values, assignments):
        tree = with_value(tree, each.key, each.as_one if isinstance(each, WholeList) else each)
    first = f"# Changes to {parent.path.name}, written by memplan."
    lines = [*head, first, *_lines(tree, parent, depth=0)]
    if all(line.startswith("#") for line in lines):
        lines.append(_NOTHING)
    return parent.document.source.newline.join([*lines, marker, ""])


def _lines(tree: dict[str, Any], parent: UserConfig, *, depth: int) -> Iterator[str]:
    for name, branch in tree.items():
        head = f"{_INDENT * depth}{name}:"
        if isinstance(branch, Assignment):
            yield with_comment(f"{head} {write_yaml(branch.value)}", comment_on(parent.document, branch))
        else:
            yield head
            yield from _lines(branch, parent, depth=depth + 1)
