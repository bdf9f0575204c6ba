"""Unified diffs that ``git apply`` and ``patch -p1`` take."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_NO_NEWLINE = "\n\\ No newline at end of file\n"


def unified_diff(before: str | None, after: str, *, path: str) -> str:
    """Return the diff of one file; empty where nothing differs.

    Args:
        before: old text; None where the file is new.
        after: new text.
        path: path relative to the folder in which the diff is applied, with forward slashes.
    """
    old = "/dev/null" if before is None else _name(f"a/{path}")
    lines = difflib.unified_diff(_LINE.findall(before or ""), _LINE.findall(after), old, _name(f"b/{path}"))
    return "".join(_terminated(lines))


def _name(path: str) -> str:
    return f"{path}\t" if " " in path else path


def _terminated(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line if line.endswith("\n") else line + _NO_NEWLINE
