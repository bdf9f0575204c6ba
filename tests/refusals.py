"""What a config is refused with: one clear line, and nothing on disk changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder and of those inside it, by their paths from there."""
    return {str(each.relative_to(folder)): each.read_bytes() for each in sorted(folder.rglob("*")) if each.is_file()}


def refusal(read: Callable[[], object], folder: Path) -> str | None:
    """Return the line that a config of a folder is refused with; None where it is read."""
    before = contents(folder)
    try:
        read()
    except ConfigError as error:
        message = str(error)
        assert "\n" not in message
        assert message.startswith(str(folder))
        assert len(message) < len(str(folder)) + 400
        return message
    finally:
        assert contents(folder) == before
    return None
