"""Lines that say that work still goes on, for a log, in which no progress bar moves."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_FIRST_AFTER_S = 20.0  # most traces and trials have ended by then


class LateLines:
    """Tell of the work under way once it takes long, and again each time it has taken twice as long.

    Args:
        say: prints a line; called in a thread of its own.
        first_after_s: how long nothing is said, in seconds; None for the usual time.
    """

    def __init__(self, say: Callable[[str], None], first_after_s: float | None = None) -> None:
        self._say = say
        self._first_after_s = _FIRST_AFTER_S if first_after_s is None else first_after_s
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._description = self._doing = ""

    def begin(self, description: str) -> None:
        """Begin a piece of work, which ends the one before."""
        self.end()
        with self._lock:
            self._description, self._doing = description, ""
            self._start_timer(time.monotonic(), self._first_after_s)

    def advance(self, doing: str) -> None:
        """Note what is done now."""
        with self._lock:
            self._doing = doing

    def end(self) -> None:
        """End the piece of work; nothing more is said of it."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None

    def _start_timer(self, begun: float, due_after_s: float) -> None:
        wait_s = max(begun + due_after_s - time.monotonic(), 0.0)
        self._timer = threading.Timer(wait_s, self._tell, (begun, due_after_s))
        self._timer.daemon = True
        self._timer.start()

    def _tell(self, begun: float, taken_s: float) -> None:
        with self._lock:
            if threading.current_thread() is not self._timer:  # the work ended as the time came
                return
            now = f": {self._doing}" if self._doing else ""
            self._say(f"{self._description}{now}, {taken_s:.0f} s so far")
            self._start_timer(begun, 2 * taken_s)
