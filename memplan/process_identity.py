"""Processes identified so that no later one with the same number can be mistaken for them."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_STATE, _START_TICKS = 0, 19  # among what follows the name in ``/proc/PID/stat``, see proc_pid_stat(5)
_ENDED = "ZX"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """One process of one machine.

    Args:
        host: name of the machine.
        pid: process id there.
        started: the boot of the machine, and the kernel's ticks from it to the start, which no clock sets.
    """

    host: str
    pid: int
    started: str

    def is_running(self) -> bool | None:
        """Whether the process still runs; None on another machine, where that cannot be known."""
        if self.host != socket.gethostname():
            return None
        status = _status_of(self.pid)
        return status is not None and _started(status) == self.started and status[_STATE] not in _ENDED


def this_process() -> ProcessIdentity:
    """Return the identity of this process."""
    return identity_of(os.getpid())


def identity_of(pid: int) -> ProcessIdentity:
    """Return the identity of a process of this machine.

    Raises:
        ProcessLookupError: there is none of that number.
    """
    status = _status_of(pid)
    if status is None:
        raise ProcessLookupError(f"there is no process {pid}")
    return ProcessIdentity(host=socket.gethostname(), pid=pid, started=_started(status))


def _started(status: list[str]) -> str:
    return f"{_boot_id()}+{status[_START_TICKS]}"


@cache
def _boot_id() -> str:
    return _BOOT_ID.read_text(encoding="utf-8").strip()


def _status_of(pid: int) -> list[str] | None:
    """Return what the kernel says of a process behind its name, which may hold anything; None where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()
