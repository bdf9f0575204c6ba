"""Streams and events of an absent card: all work runs at once, in order."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

_ELAPSED_MS = 1.0  # presumed, because timings are only logged


class StandInEvent:
    """Replaces ``torch.cuda.Event``."""

    def __init__(self, *_settings: Any, **_named: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        """Do nothing: earlier work has run."""

    def wait(self, stream: Any = None) -> None:
        """Do nothing: the awaited work has run."""

    def synchronize(self) -> None:
        """Do nothing: the awaited work has run."""

    def query(self) -> bool:
        """Return True: earlier work has run."""
        return True

    def elapsed_time(self, _end_event: Any) -> float:
        """Return presumed milliseconds to another event."""
        return _ELAPSED_MS


class StandInStream(nullcontext[None]):
    """Replaces ``torch.cuda.Stream``.

    The caching allocator's pools per stream are not modelled.
    """

    def __init__(self, *_settings: Any, **_named: Any) -> None:
        super().__init__()

    def wait_stream(self, stream: Any) -> None:
        """Do nothing: the awaited work has run."""

    def wait_event(self, event: Any) -> None:
        """Do nothing: the event has happened."""

    def record_event(self, event: Any = None) -> Any:
        """Return the event, or a new one."""
        return event or StandInEvent()

    def synchronize(self) -> None:
        """Do nothing: the work has run."""

    def query(self) -> bool:
        """Return True: the work has run."""
        return True
