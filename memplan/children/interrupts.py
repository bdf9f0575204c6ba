"""Signals that end a program, held back while a child is between started and known, or being ended."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Delay what a handler makes of Ctrl-C and its like until the block has ended, so that no child is left behind.

    Signals that are ignored, or end the process outright, stay as they are. Handlers run in the main thread only, so
    elsewhere there is nothing to delay.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = {number: handler for number in _ENDINGS if callable(handler := signal.getsignal(number))}
    held: list[int] = []
    for number in usual:
        signal.signal(number, lambda number, _: held.append(number))
    try:
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
        if held:
            usual[signal.Signals(held[0])](held[0], None)
