"""How much memory a process and everything it has started hold."""

from __future__ import annotations

import time

import psutil

_LOOK_FOR_DESCENDANTS_EVERY_S = 0.5


class ProcessTree:
    """Reads the resident set of a process and its descendants, often and cheaply.

    Looking for descendants means looking at every process of the machine, so it is done less often than reading.
    """

    def __init__(self) -> None:
        self._descendants: list[psutil.Process] = []
        self._looked_at = float("-inf")

    def resident_bytes(self, pid: int) -> int:
        """Resident set of the process plus what its descendants do not share with others; 0 once it has ended."""
        try:
            process = psutil.Process(pid)
            own_bytes: int = process.memory_info().rss
            if time.monotonic() - self._looked_at >= _LOOK_FOR_DESCENDANTS_EVERY_S:
                self._descendants = process.children(recursive=True)
                self._looked_at = time.monotonic()
        except psutil.Error:
            return 0
        return own_bytes + sum(_unshared_bytes(child) for child in self._descendants)


def _unshared_bytes(process: psutil.Process) -> int:
    try:
        unshared: int = process.memory_full_info().uss
    except psutil.Error:
        return 0
    return unshared
