"""How much memory a process and everything it has started hold."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

T = TypeVar("T")
_LOOK_FOR_DESCENDANTS_EVERY_S = 0.5


class ProcessTree:
    """Reads the resident set of a process and its descendants, often and cheaply.

    Looking for descendants means looking at every process of the machine, so it is done less often than reading.
    """

    def __init__(self) -> None:
        self._processes: list[psutil.Process] = []
        self._looked_at = float("-inf")

    def resident_bytes(self, pid: int) -> int:
        """Resident set of the process plus what its descendants do not share with others; 0 once it has ended."""
        whole_bytes, unshared_bytes = self.resident_parts(pid, {pid})
        return whole_bytes + unshared_bytes

    def resident_parts(self, pid: int, whole: Collection[int]) -> tuple[int, int]:
        """Resident sets of the processes named, and what the others below ``pid`` hold without sharing it.

        Args:
            pid: the process at the root.
            whole: process ids, the root or descendants of it.
        """
        try:
            root = psutil.Process(pid)
            if time.monotonic() - self._looked_at >= _LOOK_FOR_DESCENDANTS_EVERY_S:
                self._processes = [root, *root.children(recursive=True)]
                self._looked_at = time.monotonic()
        except psutil.Error:
            return 0, 0
        whole_sets = [_read(each.memory_info) for each in self._processes if each.pid in whole]
        others = [_read(each.memory_full_info) for each in self._processes if each.pid not in whole]
        return sum(each.rss for each in whole_sets if each), sum(each.uss for each in others if each)

    def python_age_s(self, *, without: str | None = None) -> float:
        """How long the oldest Python process among those read last has run; 0 where there is none.

        Args:
            without: only those count that were started without this variable of the environment; None for all.
        """
        pythons = [each for each in self._processes if (_read(each.name) or "").startswith("python")]
        if without is not None:
            variables = ((each, _read(each.environ)) for each in pythons)
            pythons = [each for each, known in variables if known is not None and without not in known]
        now = time.time()
        return max((now - (_read(each.create_time) or now) for each in pythons), default=0.0)


def _read(figure: Callable[[], T]) -> T | None:
    """Return a figure of a process; None once it has ended."""
    try:
        return figure()
    except psutil.Error:
        return None
