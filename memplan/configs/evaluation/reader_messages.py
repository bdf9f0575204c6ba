"""The messages between memplan and the processes that load a config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan.configs.documents import SourceFile


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """What to read.

    Args:
        path: the config file, absolute.
        texts: absolute path -> text to take instead of what is on disk.
        import_path: folders from which the config may import.
        clock_is_ahead: whether the config is told a later time.
    """

    path: str
    texts: Mapping[str, str]
    import_path: tuple[str, ...]
    clock_is_ahead: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAnswer:
    """What a config evaluates to.

    Args:
        values: effective values as plain data.
        files: the files it is made of, the config itself first.
        notes: what could not be passed on as it is.
    """

    values: dict[str, Any]
    files: tuple[SourceFile, ...]
    notes: tuple[str, ...]
