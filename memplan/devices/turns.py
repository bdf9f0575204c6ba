"""Turns on a device: memplan's processes on one machine use a card, or the CPU, one after another.

A turn is a lock on a file (``flock``), which the kernel gives up when its holder ends, however it ends. Whoever has had
a turn and wants another queues behind those who wait already: a second lock is held while waiting for the first.

The files lie in ``MEMPLAN_TURNS_DIR``, or else in one folder of the machine's temporary directory that all users share.
Containers see each other's turns only where they share that folder. Programs other than memplan take no turns.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FOLDER_VARIABLE = "MEMPLAN_TURNS_DIR"
_LOOK_EVERY_S = 0.1
_MADE_WITHIN_S = 2.0
_TOLD_CHARACTERS = 200


@contextlib.contextmanager
def device_turn(resource: str, *, notify: Callable[[str], None]) -> Iterator[None]:
    """Hold a resource exclusively among memplan's processes, waiting for it as long as it takes.

    Args:
        resource: what is taken turns on: ``cpu``, or the UUID of a card.
        notify: called with a sentence where there is something to wait for, or turns cannot be taken here.
    """
    name = re.sub(r"[^\w.-]", "_", resource)
    with contextlib.ExitStack() as files:
        try:
            folder = _made(turns_folder())
            queue, turn = (_opened(folder / f"{name}.{kind}", files) for kind in ("queue", "turn"))
            is_free = _try_to_lock(queue) and _try_to_lock(turn)
        except OSError as error:
            notify(f"no turns are taken on {resource}: {error}")
            yield
            return
        if not is_free:
            notify(f"waiting for {resource}, which {_holder(turn)} is using")
        _lock(queue)
        _lock(turn)
        fcntl.flock(queue, fcntl.LOCK_UN)
        _sign(turn)
        try:
            yield
        finally:
            os.ftruncate(turn, 0)  # so that nobody waiting reads this process as the holder


def turns_folder() -> Path:
    """Return the folder of the lock files; it need not exist."""
    named = os.environ.get(_FOLDER_VARIABLE)
    return Path(named) if named else Path(tempfile.gettempdir()) / "memplan-turns"


def _made(folder: Path) -> Path:
    """Make the folder so that every user of the machine can use it."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(PermissionError):  # another user was quicker
            folder.chmod(0o1777)
    return folder


def _opened(path: Path, files: contextlib.ExitStack) -> int:
    """Open a lock file, made where it is missing."""
    deadline = time.monotonic() + _MADE_WITHIN_S
    while True:
        try:
            descriptor = _opened_or_made(path)
        except PermissionError:  # another user has just made folder or file, and opens it to all in a moment
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_EVERY_S)
        else:
            files.callback(os.close, descriptor)
            return descriptor


def _opened_or_made(path: Path) -> int:
    """Open a lock file or make it; links are not followed, since the folder is open to all.

    Not in one call: the kernel refuses one that would make the file where it is another user's (``protected_regular``,
    Documentation/admin-guide/sysctl/fs.rst).
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, flags)
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:  # another process was quicker
        return os.open(path, flags)
    os.fchmod(descriptor, 0o666)  # whatever the umask says
    return descriptor


def _try_to_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock(descriptor: int) -> None:
    """Wait for a lock in small pieces, so that Ctrl-C is answered at once."""
    while not _try_to_lock(descriptor):
        time.sleep(_LOOK_EVERY_S)


def _sign(turn: int) -> None:
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name
    command = " ".join([name, *sys.argv[1:]])[:_TOLD_CHARACTERS]
    os.ftruncate(turn, 0)
    os.pwrite(turn, f"process {os.getpid()} ({command})".encode(errors="replace"), 0)


def _holder(turn: int) -> str:
    signed = os.pread(turn, 4 * _TOLD_CHARACTERS, 0).decode(errors="replace")
    return "".join(each for each in signed if each.isprintable()) or "another process"
