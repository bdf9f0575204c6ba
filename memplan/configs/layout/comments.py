"""The trailing comments of a child config: what a value was, and why it changes, within the line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.configs.keys import contains, get
from memplan.configs.languages.literals import write_python

if TYPE_CHECKING:
    from memplan.configs.assignments import Assignment
    from memplan.configs.documents import Document

NOT_SET = "not set"
MAX_COLUMNS = 120
LEAST_COMMENT = 32  # columns a comment gets before its value is spread over several lines
_WIDEST_VALUE = 40
_ELLIPSIS = "…"


def comment_on(document: Document, assignment: Assignment) -> str:
    """Return what a value was, and why it changes."""
    write = document.language.write
    is_set = contains(document.values, assignment.key)
    value = get(document.values, assignment.key)
    before = (write_python(value) if isinstance(value, dict) else write(value)) if is_set else NOT_SET
    return f"was {_cut(before, _WIDEST_VALUE)}: {assignment.reason}"


def with_comment(line: str, comment: str | None) -> str:
    """Return a line with a comment behind it, cut to ``MAX_COLUMNS``; without it where there is no room."""
    room = MAX_COLUMNS - len(line) - len("  # ")
    return line if comment is None or room <= len(_ELLIPSIS) else f"{line}  # {_cut(comment, room)}"


def _cut(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    kept = text[: width - len(_ELLIPSIS)]
    words = kept.rpartition(" ")[0]
    return (words if len(words) > width // 2 else kept).rstrip(" ,;:(") + _ELLIPSIS
