"""The one way memplan writes files: whole or not at all, several together or none."""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import TYPE_CHECKING

from memplan.errors import OutputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path


def require_place_for(path: Path) -> None:
    """Make sure, before what may take long, that there is a place for the file that is to hold the result.

    Raises:
        UsageError: it is a hyphen or a folder, or its folder is missing or not writable.
    """
    folder = path.parent
    if str(path) == "-":
        raise UsageError("- names no file", hint="name one, or /dev/stdout")
    if path.is_dir():
        raise UsageError("it is a folder", where=str(path), hint="name a file in it")
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", where=str(path), hint="make it first")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"the folder {folder} cannot be written to", where=str(path))


def write_text_atomically(path: Path, text: str) -> None:
    """Write text as UTF-8, line endings as they are, as :func:`write_bytes_atomically` writes bytes.

    Raises:
        OutputError: the folder is missing, not writable or full; nothing has changed then.
    """
    write_bytes_atomically(path, _encoded(text))


def write_bytes_atomically(path: Path, content: bytes) -> None:
    """Write bytes to a neighbour of the file and then put it in the file's place.

    An existing file keeps its permissions, and a symbolic link what it points to. What stands at ``path`` is either the
    old or the new content, never a part. Nothing takes the place of a device or pipe: it is written to.

    Raises:
        OutputError: the folder is missing, not writable or full; nothing has changed then.
    """
    if not path.exists() or path.is_file():
        write_files_together({path.resolve(): content})
        return
    try:
        path.write_bytes(content)
    except OSError as error:
        raise _trouble(path, error) from error


def write_files_together(contents: Mapping[Path, str | bytes | None]) -> None:
    """Write several files as :func:`write_bytes_atomically` does, all of them or none.

    All content is on the disk before the first file is replaced; where a replacement fails, the earlier ones are taken
    back. Only a machine that stops between two replacements can leave some files old and some new, each of them whole.

    Args:
        contents: file -> its new text or bytes; None removes it.

    Raises:
        OutputError: a file cannot be written or removed; nothing has changed then.
    """
    staged: dict[Path, str] = {}
    try:
        for path, content in contents.items():
            if content is not None:
                staged[path] = _staged(path, _encoded(content) if isinstance(content, str) else content)
        _put_in_place(contents, staged)
    finally:
        for temporary in staged.values():
            with contextlib.suppress(OSError):
                os.unlink(temporary)  # noqa: PTH108 - the pair of mkstemp


@contextlib.contextmanager
def folders_for(paths: Collection[Path]) -> Iterator[None]:
    """Make the folders that files are to be written to; where writing them fails, take the new ones back.

    Raises:
        OutputError: a folder cannot be made.
    """
    missing = {folder for path in paths for folder in path.parents if not folder.exists()}
    made: list[Path] = []
    try:
        for folder in sorted(missing):  # a folder sorts before what is in it
            try:
                folder.mkdir()
            except OSError as error:
                raise _trouble(folder, error) from error
            made.append(folder)
        yield
    except BaseException:
        for folder in reversed(made):
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def remove_empty_folders(folder: Path, *, outermost: Path) -> None:
    """Remove a folder and those around it, as far as the outermost one, while they are empty."""
    for each in (folder, *folder.parents):
        if not each.is_relative_to(outermost):
            return
        try:
            each.rmdir()
        except OSError:  # something lies in it
            return


def _encoded(text: str) -> bytes:
    """Return text as UTF-8, and the bytes of a file's name that are none as they are (PEP 383)."""
    return text.encode(errors="surrogateescape")


def _staged(path: Path, content: bytes) -> str:
    """Write content beside its file and return the temporary file's name."""
    temporary: str | None = None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())  # noqa: PTH101
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)  # noqa: PTH108
        raise _trouble(path, error) from error
    return temporary


def _put_in_place(paths: Collection[Path], staged: Mapping[Path, str]) -> None:
    done: dict[Path, bytes | None] = {}
    for path in paths:
        try:
            before = path.read_bytes() if len(paths) > 1 and path.exists() else None
            if path in staged:
                os.replace(staged[path], path)  # noqa: PTH105 - the pair of mkstemp
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            _take_back(done)
            raise _trouble(path, error) from error
        done[path] = before


def _take_back(done: Mapping[Path, bytes | None]) -> None:
    for path, content in done.items():
        with contextlib.suppress(OSError, OutputError):
            if content is None:
                path.unlink(missing_ok=True)
            else:
                os.replace(_staged(path, content), path)  # noqa: PTH105


def _trouble(path: Path, error: OSError) -> OutputError:
    return OutputError(f"cannot be written: {error.strerror or error}", where=str(path))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
