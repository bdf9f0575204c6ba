"""Streams and events of a card that is not there: what runs on them runs at once, and in order."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

_ELAPSED_MS = 1.0  # presumed: events are timed to be logged


class StandInEvent:
    """Stands for ``torch.cuda.Event``."""

    def __init__(self, *_settings: Any, **_named: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        """Do nothing: what came before it has run."""

    def wait(self, stream: Any = None) -> None:
        """Do nothing: what is waited for has run."""

    def synchronize(self) -> None:
        """Do nothing: what is waited for has run."""

    def query(self) -> bool:
        """Whether all before it has run, as it has."""
        return True

    def elapsed_time(self, _end_event: Any) -> float:
        """Return the milliseconds to another event, which nobody knows."""
        return _ELAPSED_MS


class StandInStream(nullcontext[None]):
    """Stands for ``torch.cuda.Stream``.

    Blocks are not kept apart by stream here, as the caching allocator keeps them.
    """

    def __init__(self, *_settings: Any, **_named: Any) -> None:
        super().__init__()

    def wait_stream(self, stream: Any) -> None:
        """Do nothing: what runs there has run."""

    def wait_event(self, event: Any) -> None:
        """Do nothing: the event has happened."""

    def record_event(self, event: Any = None) -> Any:
        """Return the event, or a new one."""
        return event or StandInEvent()

    def synchronize(self) -> None:
        """Do nothing: what runs here has run."""

    def query(self) -> bool:
        """Whether all that runs here has run, as it has."""
        return True
