"""Streams and events of an absent card: all work runs at once, in order.

Which stream is current decides where PyTorch's allocator caches a block that is made. A node of the autograd graph runs
on the stream that its operator ran on (``torch/csrc/autograd/input_metadata.h`` and ``engine.cpp``); nodes are numbered
in the order of their making.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    """Replaces ``torch.cuda.Stream``."""

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

    def is_capturing(self) -> bool:
        """Return False: no graph is being captured."""
        return False


class GraphStream(StandInStream):
    """The stream on which CUDA graphs are recorded, whose blocks have a pool of their own."""


_entered = [StandInStream()]
_nodes_of_streams: list[tuple[int, int, StandInStream]] = []  # from the first number to before the last


def default_stream(_device: Any = None) -> StandInStream:
    """Return the stream that work runs on unless another one is entered."""
    return _entered[0]


def current_stream(_device: Any = None) -> StandInStream:
    """Return the stream that was entered last or, in the backward pass, that the forward pass of a node was on."""
    node = torch._C._current_autograd_node() if _nodes_of_streams and len(_entered) == 1 else None  # noqa: SLF001 - public under no other name
    if node is None:
        return _entered[-1]
    number = node._sequence_nr()  # noqa: SLF001 - as above
    return next((stream for begin, end, stream in _nodes_of_streams if begin <= number < end), _entered[-1])


@contextmanager
def entered(stream: StandInStream | None) -> Iterator[None]:
    """Run work on a stream while the context is open, where it is given."""
    if stream is None:
        yield
        return
    begin = _next_node()
    _entered.append(stream)
    try:
        yield
    finally:
        _entered.pop()
        if _next_node() > begin:
            _nodes_of_streams.append((begin, _next_node(), stream))


def _next_node() -> int:
    number: int = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]  # noqa: SLF001 - public under no other name
    return number
