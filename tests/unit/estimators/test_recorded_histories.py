"""The allocator model against event histories of PyTorch's own allocator, event by event.

Those of ``benchmarks/truth`` were recorded on a card, those of ``benchmarks/stubbed`` on stubs of CUDA's libraries,
without one; the allocator is PyTorch's.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.estimators.allocators.allocator_config import SMALL_SEGMENT_BYTES, UNIT_BYTES, SegmentOrder
from memplan.estimators.allocators.caching_allocator import DEFAULT_CONFIG, CachingAllocator
from memplan.estimators.allocators.segment_addresses import SPREAD_PAGE_UNITS, addresses_by
from memplan.estimators.allocators.snapshot import predicted_snapshot
from memplan.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan.estimators.allocators.segment_addresses import SegmentAddresses

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
ALLOC, FREE, SEGMENT = "alloc", "free_completed", "segment_alloc"


def lines_of(folder: str, kind: str) -> Iterator[dict[str, Any]]:
    for path in sorted((BENCHMARKS / folder).glob(f"{kind}*")):
        content = path.read_bytes()
        text = gzip.decompress(content) if path.suffix == ".gz" else content
        yield from map(json.loads, text.splitlines())


def histories() -> list[dict[str, Any]]:
    """The histories, each with the order that its record's version of torch implies."""
    found = []
    for folder in ("truth", "stubbed"):
        versions = {record["key"]: record["provenance"]["torch"] for record in lines_of(folder, "records")}
        found += [
            {**history, "order": SegmentOrder.of_torch(versions[history["key"]])}
            for history in lines_of(folder, "histories")
        ]
    return found


class RecordedAddresses:
    """Segments lie where they lay in a history; which of two equal blocks is taken depends on it."""

    def __init__(self, addresses: list[int]) -> None:
        self._addresses = iter(addresses)

    def place(self, size: int) -> int:
        # one more than was recorded is obtained where the model is wrong, which then is what the test shows
        return next(self._addresses, 0) // SMALL_SEGMENT_BYTES * SPREAD_PAGE_UNITS


def driver_requests(
    events: Iterator[tuple[str, int, int]], addresses: SegmentAddresses | None = None
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return when and how much was asked of the driver: as the events say, and as the model does on the same requests.

    A request is numbered by the allocations that completed before it.
    """
    asked: list[tuple[int, int]] = []
    allocator = CachingAllocator(
        DEFAULT_CONFIG,
        listener=lambda action, _, size: asked.append((count, size * UNIT_BYTES)),
        addresses=addresses,
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


HISTORIES = histories()
BY_ADDRESS = [history for history in HISTORIES if history["order"] is SegmentOrder.ADDRESS]


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history["key"])
def test_the_model_asks_the_driver_when_pytorch_did(history: dict[str, Any]) -> None:
    by_address = history["order"] is SegmentOrder.ADDRESS
    addresses = RecordedAddresses(history["segment_addresses"]) if by_address else None
    recorded, asked = driver_requests(named(history), addresses)
    assert asked == recorded


@pytest.mark.parametrize("history", BY_ADDRESS, ids=lambda history: history["key"])
def test_it_does_so_where_segments_lie_as_presumed(history: dict[str, Any]) -> None:
    recorded, asked = driver_requests(named(history), addresses_by(SegmentOrder.ADDRESS))
    assert asked == recorded
