"""Where segments lie in a replay, which decides between equally large free blocks: the lower address is used first.

From torch 2.12 on, PyTorch compares ages before addresses (``BlockComparatorSizeCounterAddress`` in
``CUDACachingAllocator.cpp`` of 2.13), which rising addresses stand for. Before, the driver's addresses count. No
document tells those. They are read from pointers that runs on cards printed, in PyTorch's snapshots and NCCL's logs,
under CUDA 11 and 12 on Linux: a large segment begins at a multiple of 32 MiB, right below the one that was obtained
before, and what the last range of 32 MiB has left is given to later and smaller ones, upwards. So does Linux itself
hand out ranges of addresses (``mmap``, from the top down). Not modelled: that a range given back is used again, and
that both pools and the driver itself share ranges.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final, Protocol

from memplan.estimators.allocators.allocator_config import SMALL_SEGMENT_BYTES, UNIT_BYTES, SegmentOrder
from memplan.units import ceil_div, round_up

_PAGE_UNITS: Final = SMALL_SEGMENT_BYTES // UNIT_BYTES
_RANGE_PAGES: Final = (32 << 20) // SMALL_SEGMENT_BYTES
SPREAD_PAGE_UNITS: Final = _PAGE_UNITS + 1  # of a page of 2 MiB, so that segments never touch: blocks would merge
_ADDRESSABLE_PAGES: Final = 1 << 26  # 128 TiB, as much as a process has on x86-64
POOL_UNITS: Final = _ADDRESSABLE_PAGES * SPREAD_PAGE_UNITS


class SegmentAddresses(Protocol):
    """Where the segments of a pool lie, in units of 512 bytes."""

    def place(self, size: int) -> int:
        """Return the address of the next segment, of ``size`` units; no two segments touch."""


def addresses_from(begin: int, order: SegmentOrder) -> SegmentAddresses:
    """Return addresses of one pool, from ``begin`` to less than ``POOL_UNITS`` above it."""
    return RisingAddresses(begin) if order is SegmentOrder.AGE else DriverAddresses(begin + POOL_UNITS)


class RisingAddresses:
    """Each segment above the one before, none at address zero.

    Args:
        begin: the address that all lie above.
    """

    __slots__ = ("_next",)

    def __init__(self, begin: int) -> None:
        self._next = begin + 1

    def place(self, size: int) -> int:
        """Return the address of the next segment, of ``size`` units; no two segments touch."""
        address = self._next
        self._next += size + 1
        return address


class DriverAddresses:
    """Each segment in the oldest range of addresses with room, or in a new one below all others.

    Args:
        end: the address that all lie below.
    """

    __slots__ = ("_lowest_page", "_rests")

    def __init__(self, end: int) -> None:
        self._lowest_page = end // SPREAD_PAGE_UNITS
        # What ranges have left, by pages: negative pages, so that the oldest, which lies highest, comes first.
        self._rests: list[list[int]] = [[] for _ in range(_RANGE_PAGES)]

    def place(self, size: int) -> int:
        """Return the address of the next segment, of ``size`` units; no two segments touch."""
        pages = ceil_div(size, _PAGE_UNITS)
        fitting = [(self._rests[rest][0], rest) for rest in range(pages, _RANGE_PAGES) if self._rests[rest]]
        if fitting:
            _, room = min(fitting)
            page = -heappop(self._rests[room])
        else:
            room = round_up(pages, _RANGE_PAGES)
            self._lowest_page -= room
            page = self._lowest_page
        if room > pages:
            heappush(self._rests[room - pages], -page - pages)
        return page * SPREAD_PAGE_UNITS
