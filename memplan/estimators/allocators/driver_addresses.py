"""Where the driver puts what it is asked for: which of two equally large free blocks PyTorch takes depends on it.

No document says so. It is read from pointers that runs on cards printed, in PyTorch's snapshots and NCCL's logs, under
CUDA 11 and 12 on Linux: a large segment begins at a multiple of 32 MiB, right below the one that was obtained before,
and what the last range of 32 MiB has left is given to later and smaller ones, upwards. So does Linux itself hand out
ranges of addresses (``mmap``, from the top down). Not modelled: that a range given back is used again, and that both
pools and the driver itself share ranges.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from memplan.estimators.allocators.allocator_config import SMALL_SEGMENT_BYTES, UNIT_BYTES

_PAGE_UNITS: Final = SMALL_SEGMENT_BYTES // UNIT_BYTES
_RANGE_PAGES: Final = (32 << 20) // SMALL_SEGMENT_BYTES
_SPREAD_PAGE_UNITS: Final = _PAGE_UNITS + 1  # so that segments never touch, whose blocks would merge
_ADDRESSABLE_PAGES: Final = 1 << 26  # 128 TiB, as much as a process has on x86-64
SMALL_POOL_END: Final = _ADDRESSABLE_PAGES * _SPREAD_PAGE_UNITS
LARGE_POOL_END: Final = 2 * SMALL_POOL_END


class DriverAddresses:
    """Addresses of the segments of one pool, in units of 512 bytes: each in the oldest range with room, or below all.

    Args:
        end: the address that all lie below, ``SMALL_POOL_END`` or ``LARGE_POOL_END``.
    """

    __slots__ = ("_lowest_page", "_rests")

    def __init__(self, end: int) -> None:
        self._lowest_page = end // _SPREAD_PAGE_UNITS
        # What ranges have left, by pages: negative pages, so that the oldest, which lies highest, comes first.
        self._rests: list[list[int]] = [[] for _ in range(_RANGE_PAGES)]

    def place(self, size: int) -> int:
        """Return the address of the next segment, of ``size`` units; no two segments touch."""
        pages = -(-size // _PAGE_UNITS)
        fitting = [(self._rests[rest][0], rest) for rest in range(pages, _RANGE_PAGES) if self._rests[rest]]
        if fitting:
            _, room = min(fitting)
            page = -heappop(self._rests[room])
        else:
            room = -(-pages // _RANGE_PAGES) * _RANGE_PAGES
            self._lowest_page -= room
            page = self._lowest_page
        if room > pages:
            heappush(self._rests[room - pages], -page - pages)
        return page * _SPREAD_PAGE_UNITS
