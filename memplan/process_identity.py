"""Processes identified so that no later one with the same number can be mistaken for them."""

from __future__ import annotations

import socket
from dataclasses import dataclass

import psutil

_SAME_START_S = 0.1  # readings of one start time differ by less


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """One process of one machine.

    Args:
        host: name of the machine.
        pid: process id there.
        started_at: when it started, in seconds since the epoch.
    """

    host: str
    pid: int
    started_at: float

    def is_running(self) -> bool | None:
        """Whether the process still runs; None on another machine, where that cannot be known."""
        if self.host != socket.gethostname():
            return None
        try:
            found = psutil.Process(self.pid)
            is_same = abs(found.create_time() - self.started_at) < _SAME_START_S
            return is_same and found.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def this_process() -> ProcessIdentity:
    """Return the identity of this process."""
    process = psutil.Process()
    return ProcessIdentity(host=socket.gethostname(), pid=process.pid, started_at=process.create_time())
