"""The allocator model against event histories of PyTorch's own allocator, event by event.

Those of ``benchmarks/stubbed`` were recorded on stubs of CUDA's libraries, without a card; the allocator is PyTorch's.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.estimators.allocators.allocator import DEFAULT_CONFIG, CachingAllocator
from memplan.estimators.allocators.allocator_config import UNIT_BYTES
from memplan.estimators.snapshot import predicted_snapshot
from memplan.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
ALLOC, FREE, SEGMENT = "alloc", "free_completed", "segment_alloc"


def histories() -> list[dict[str, Any]]:
    on_cards = [path.read_text() for path in sorted((BENCHMARKS / "truth").glob("histories*.jsonl"))]
    on_stubs = [gzip.decompress(path.read_bytes()) for path in sorted((BENCHMARKS / "stubbed").glob("histories*.gz"))]
    return [json.loads(line) for text in (*on_cards, *on_stubs) for line in text.splitlines()]


def driver_requests(events: Iterator[tuple[str, int, int]]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return when and how much was asked of the driver: as the events say, and as the model does on the same requests.

    A request is numbered by the allocations that completed before it.
    """
    asked: list[tuple[int, int]] = []
    allocator = CachingAllocator(
        DEFAULT_CONFIG, listener=lambda action, _, size: asked.append((count, size * UNIT_BYTES))
    )
    recorded, live, count = [], {}, 0
    for action, block, size_bytes in events:
        if action == SEGMENT:
            recorded.append((count, size_bytes))
        elif action == ALLOC:
            found = allocator.allocate(DEFAULT_CONFIG.rounded_bytes(size_bytes) // UNIT_BYTES)
            assert found is not None
            live[block] = found
            count += 1
        elif action == FREE and block in live:
            allocator.free(*live.pop(block))
    return recorded, asked


def named(history: dict[str, Any]) -> Iterator[tuple[str, int, int]]:
    return ((history["actions"][action], block, size) for action, block, size, _ in history["events"])


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 30 * MIB)), max_size=60))
def test_a_history_written_by_the_model_is_read_back_as_the_same_requests(steps: list[tuple[int, int]]) -> None:
    sizes, held = [], set()
    for block, size in steps:
        sizes.append(0 if block in held else size)
        held ^= {block}
    entries = predicted_snapshot([block for block, _ in steps], sizes, [()] * 10)["device_traces"][0]
    recorded, asked = driver_requests((each["action"], each.get("addr", 0), each["size"]) for each in entries)
    assert asked == recorded


@pytest.mark.parametrize("history", histories(), ids=lambda history: history["key"])
def test_the_model_asks_the_driver_when_pytorch_did(history: dict[str, Any]) -> None:
    recorded, asked = driver_requests(named(history))
    assert asked == recorded
