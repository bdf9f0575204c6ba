"""Signals that end a program, held back while there is a child that would be left behind."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class HeldInterrupts:
    """Signals that have arrived since they are held back.

    Args:
        usual: what handles each of them otherwise.
    """

    def __init__(self, usual: dict[signal.Signals, Any]) -> None:
        self._usual = usual
        self._held: list[int] = []

    def hold(self, number: int, _frame: object) -> None:
        """Keep a signal, as its handler."""
        self._held.append(number)

    def deliver(self) -> None:
        """Have the first of those that are kept handled as usual, which may raise, and forget the others."""
        if self._held:
            number = signal.Signals(self._held[0])
            self._held.clear()
            self._usual[number](number, None)


@contextlib.contextmanager
def interrupts_held_back() -> Iterator[HeldInterrupts]:
    """Delay what a handler makes of Ctrl-C and its like until it is asked for, or the block has ended.

    Signals that are ignored, or end the process outright, stay as they are. Handlers run in the main thread only, so
    elsewhere there is nothing to delay.
    """
    if threading.current_thread() is not threading.main_thread():
        yield HeldInterrupts({})
        return
    usual = {number: handler for number in _ENDINGS if callable(handler := signal.getsignal(number))}
    interrupts = HeldInterrupts(usual)
    for number in usual:
        signal.signal(number, interrupts.hold)
    try:
        yield interrupts
    finally:
        for number, handler in usual.items():
            if signal.getsignal(number) == interrupts.hold:  # else a handler that was asked for has set another
                signal.signal(number, handler)
        interrupts.deliver()
