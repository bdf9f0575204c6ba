"""Where segments lie in a replay, which decides between equally large free blocks: the lower address is used first.

From torch 2.12 on, PyTorch compares ages before addresses (``BlockComparatorSizeCounterAddress`` in
``CUDACachingAllocator.cpp`` of 2.13), which rising addresses stand for. Before, the driver's addresses count. No
document tells those. They are read from 1,652 segments of an H100 under driver 580, in ``benchmarks/truth``, and from
pointers that runs on other cards printed: a segment begins at a multiple of 32 MiB, below those before it, unless a
range has enough left; then it lies there, in the newest such range (607 of 616 segments did), upwards. Both pools share
the ranges. Not modelled: that a range given back is used again, what the driver itself puts into ranges, and the gaps
between libraries that the first segments of a process lie in.
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


def addresses_by(order: SegmentOrder) -> SegmentAddresses:
    """Return addresses of all segments of a process, above zero and less than ``POOL_UNITS``."""
    return RisingAddresses() if order is SegmentOrder.AGE else DriverAddresses()


class AddressesFrom:
    """Addresses among those of other pools, moved so that no two pools have one in common.

    Args:
        begin: what is added.
        addresses: those that the pools share.
    """

    __slots__ = ("_addresses", "_begin")

    def __init__(self, begin: int, addresses: SegmentAddresses) -> None:
        self._begin, self._addresses = begin, addresses

    def place(self, size: int) -> int:
        """Return the address of the next segment, of ``size`` units; no two segments touch."""
        return self._begin + self._addresses.place(size)


class RisingAddresses:
    """Each segment above the one before, none at address zero."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = 1

    def place(self, size: int) -> int:
        """Return the address of the next segment, of ``size`` units; no two segments touch."""
        address = self._next
        self._next += size + 1
        return address


class DriverAddresses:
    """Each segment in the newest range of addresses with room, or in a new one below all others."""

    __slots__ = ("_lowest_page", "_rests")

    def __init__(self) -> None:
        self._lowest_page = _ADDRESSABLE_PAGES
        # Where what ranges have left begins, by its pages; the newest range lies lowest and comes first.
        self._rests: list[list[int]] = [[] for _ in range(_RANGE_PAGES)]

    def place(self, size: int) -> int:
        """Return the address of the next segment, of ``size`` units; no two segments touch."""
        pages = ceil_div(size, _PAGE_UNITS)
        fitting = [(self._rests[rest][0], rest) for rest in range(pages, _RANGE_PAGES) if self._rests[rest]]
        if fitting:
            page, room = min(fitting)
            heappop(self._rests[room])
        else:
            room = round_up(pages, _RANGE_PAGES)
            self._lowest_page -= room
            page = self._lowest_page
        if room > pages:
            heappush(self._rests[room - pages], page + pages)
        return page * SPREAD_PAGE_UNITS
