"""A stand-in for the cards behind ``torch.cuda``: what it answers is made up, how it is called is torch's.

Every function must take what torch's of that name takes, so that a call which torch would refuse fails here too.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from memplan.units import GIB

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


@dataclass
class FakeMemory:
    """One card as this process's allocator and CUDA see it."""

    total: int = 8 * GIB
    used: int = 0
    reserved: int = 0
    reserved_peak: int = 0
    allocated_peak: int = 0
    alloc_retries: int = 0
    share: float | None = None


@dataclass
class FakeCuda:
    """Cards with a current one; ``contexts`` are those on which something made a context."""

    cards: list[FakeMemory]
    current: int = 0
    contexts: set[int] = field(default_factory=set)
    is_capturing: bool = False

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
        for name in _FUNCTIONS:
            stand_in = getattr(self, name)
            wanted = parameters_of(getattr(torch.cuda, name))
            assert wanted in (None, parameters_of(stand_in)), name
            monkeypatch.setattr(torch.cuda, name, stand_in)
        return self

    def _card(self, device: Any) -> FakeMemory:
        return self.cards[self.current if device is None else _index(device)]

    def init(self) -> None:
        self.contexts.add(self.current)

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return self.is_capturing

    def current_device(self) -> int:
        return self.current

    def set_device(self, device: Any) -> None:
        self.current = _index(device)
        self.contexts.add(self.current)

    def _exchange_device(self, device: int) -> int:
        before, self.current = self.current, device
        return before

    def _maybe_exchange_device(self, device: int) -> int:
        return self._exchange_device(device)

    def synchronize(self, device: Any = None) -> None:
        assert not self.is_capturing, "waiting would end the capture"

    def get_device_properties(self, device: Any = None) -> Any:
        return SimpleNamespace(total_memory=self._card(device).total)

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        card = self._card(device)
        return card.total - card.used, card.total

    def memory_reserved(self, device: Any = None) -> int:
        return self._card(device).reserved

    def max_memory_reserved(self, device: Any = None) -> int:
        return self._card(device).reserved_peak

    def max_memory_allocated(self, device: Any = None) -> int:
        return self._card(device).allocated_peak

    def memory_stats(self, device: Any = None) -> dict[str, Any]:
        card = self._card(device)
        kinds = dict.fromkeys(("allocated", "requested", "active"), card.allocated_peak)
        peaks = {f"{kind}_bytes.all.peak": size for kind, size in {**kinds, "reserved": card.reserved_peak}.items()}
        return {"num_alloc_retries": card.alloc_retries, "allocated_bytes.all.current": card.allocated_peak, **peaks}

    def empty_cache(self) -> None:
        for card in self.cards:
            card.reserved = 0

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        card = self._card(device)
        card.reserved_peak, card.allocated_peak = card.reserved, 0

    def reset_accumulated_memory_stats(self, device: Any = None) -> None:
        self._card(device).alloc_retries = 0

    def set_per_process_memory_fraction(self, fraction: Any, device: Any = None) -> None:
        """As in torch, which makes the card the current one, and with that a context (CUDACachingAllocator.cpp)."""
        assert isinstance(fraction, float)
        assert 0 <= fraction <= 1
        self._card(device).share = fraction
        if device is not None:
            self.set_device(device)


def _index(device: Any) -> int:
    return device if isinstance(device, int) else torch.device(device).index


_FUNCTIONS = (
    "init", "is_initialized", "is_current_stream_capturing", "current_device", "set_device", "_exchange_device",
    "_maybe_exchange_device", "synchronize", "get_device_properties", "mem_get_info", "memory_reserved",
    "max_memory_reserved", "max_memory_allocated", "memory_stats", "empty_cache", "reset_peak_memory_stats",
    "reset_accumulated_memory_stats", "set_per_process_memory_fraction",
)  # fmt: skip


def parameters_of(function: Callable[..., Any]) -> list[tuple[str, Any, Any]] | None:
    """Name, kind and default of every parameter; None for a function of C, which tells no names."""
    if inspect.isbuiltin(function):
        return None
    return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]
