"""What a change sets in a config, and how a child config is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from memplan.configs.user_config import UserConfig

_CHILD_SUFFIX = "_memplan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One effective value that a change sets; a dict takes the place of the whole inherited dict.

    Args:
        key: dotted key.
        value: the new effective value.
        reason: why, in a few words.
        flag: how the command line calls it, where that is not ``--key``.
        switch: the flag that sets it without a value behind it; None where the program has none.
    """

    key: str
    value: Any
    reason: str
    flag: str | None = None
    switch: str | None = None


class ChildWriter(Protocol):
    """Lays out a child config."""

    def __call__(self, parent: UserConfig, assignments: list[Assignment], *, head: tuple[str, ...], marker: str) -> str:
        """Return the child's text: the lines of ``head``, the values that change, and the marker's comment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildForm:
    """How an ecosystem writes a child of a config.

    Args:
        path: where the new file lies.
        write: lays out the whole file.
        head: the lines before its values.
        over: relative paths of what it is laid over by the command line, in order; none where the file itself inherits.
        notes: what the user should know, one phrase each.
    """

    path: Path
    write: ChildWriter
    head: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def child_path_of(path: Path) -> Path:
    """Return the path of a child beside its config: ``x.py`` -> ``x_memplan.py``."""
    return path.with_name(f"{path.stem}{_CHILD_SUFFIX}{path.suffix}")
