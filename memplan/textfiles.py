"""The one way memplan writes a file: whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import TYPE_CHECKING

from memplan.errors import OutputError

if TYPE_CHECKING:
    from pathlib import Path


def write_text_atomically(path: Path, text: str) -> None:
    """Write text as UTF-8, line endings as they are, to a neighbour of the file and then put it in the file's place.

    An existing file keeps its permissions. What stands at ``path`` is either the old or the new text, never a part.

    Raises:
        OutputError: the folder is missing, not writable or full; nothing has changed then.
    """
    temporary: str | None = None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())  # noqa: PTH101
        os.replace(temporary, path)  # noqa: PTH105 - the pair of mkstemp
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)  # noqa: PTH108
        raise OutputError(f"cannot be written: {error.strerror or error}", where=str(path)) from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
