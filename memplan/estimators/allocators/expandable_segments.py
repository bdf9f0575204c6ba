"""Expandable segments: one range of addresses per pool, mapped page by page (``expandable_segments:True``).

Sizes and addresses are in units of 512 bytes, as in ``memplan.estimators.allocators.segment_pools``. The range is
taken to have no end; PyTorch reserves 1.125 times the card's memory and opens a second range beyond that.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from memplan.estimators.allocators.allocator_config import UNIT_BYTES
from memplan.estimators.allocators.segment_pools import (
    ADDRESS_MASK,
    KEY_SHIFT,
    UNLIMITED_UNITS,
    DriverMemory,
    FreeBlocks,
    is_refused,
    max_split_units,
)
from memplan.units import round_up

if TYPE_CHECKING:
    from memplan.estimators.allocators.allocator_config import AllocatorConfig


class ExpandablePool(FreeBlocks):
    """A pool of one expandable segment.

    Args:
        driver: where pages come from.
        config: which blocks are never handed out for smaller requests.
        page: pages are this large.
        first_address: where the range begins, a multiple of the page.
    """

    __slots__ = ("_driver", "_holes", "_holes_by_end", "_max_rounding", "_max_split", "_page", "_starts", "_top")

    def __init__(self, driver: DriverMemory, config: AllocatorConfig, *, page: int, first_address: int) -> None:
        super().__init__()
        self._driver = driver
        self._page = page
        self._top = first_address  # from here on nothing has been mapped yet
        self._starts: list[int] = []  # of the holes: unmapped ranges below the top
        self._holes: dict[int, int] = {}
        self._holes_by_end: dict[int, int] = {}
        self._max_split = max_split_units(config)
        self._max_rounding = config.max_non_split_rounding_bytes // UNIT_BYTES

    def take(self, size: int) -> tuple[int, int] | None:
        """Hand out the best-fitting free block; return its address and size, or None where none fits.

        A block beside an unmapped range counts as large as it could grow, so that one which cannot grow goes first.
        """
        keys = self.keys
        position = bisect_left(keys, size << KEY_SHIFT)
        if position == len(keys):
            return None
        growable = self._growable_size(keys[position])
        while position + 1 < len(keys) and (next_growable := self._growable_size(keys[position + 1])) < growable:
            position += 1
            growable = next_growable
        if is_refused(size, keys[position] >> KEY_SHIFT, self._max_split, self._max_rounding):
            return None
        return self.carve(position, size, 0)

    def extend(self, size: int, segment: int) -> tuple[int, int]:  # noqa: ARG002 - pages decide, not segments
        """Map pages where the lowest range of free and unmapped addresses holds ``size``; hand out its front."""
        address = self._lowest_range(size)
        if address not in self.sizes:
            address = self._map(address, size)
        while (mapped := self.sizes[address]) < size:
            self._map(address + mapped, size - mapped)
        return self.carve(bisect_left(self.keys, self.sizes[address] << KEY_SHIFT | address), size, 0)

    def release_cached(self) -> None:
        """Unmap every page that is free as a whole."""
        for key in self.keys.copy():
            self._unmap_within(key & ADDRESS_MASK, key >> KEY_SHIFT)

    def release_oversize(self, size: int) -> bool:  # noqa: ARG002 - the same question as to a pool of segments
        """Return False: blocks of expandable segments are not returned one by one."""
        return False

    def _growable_size(self, key: int) -> int:
        size = key >> KEY_SHIFT
        end = (key & ADDRESS_MASK) + size
        return UNLIMITED_UNITS if end == self._top else size + self._holes.get(end, 0)

    def _lowest_range(self, size: int) -> int:
        """Return where the lowest run of free and unmapped blocks starts that can grow to hold ``size``."""
        for hole in self._starts:
            start = self.starts_by_end.get(hole, hole)
            if self._run_length(start, size) >= size:
                return start
        return self.starts_by_end.get(self._top, self._top)

    def _run_length(self, address: int, enough: int) -> int:
        """Length of the run of blocks from an address that nobody holds, counted until it is ``enough``."""
        length = 0
        while length < enough:
            if address + length == self._top:
                return enough
            block = self.sizes.get(address + length) or self._holes.get(address + length)
            if block is None:
                break
            length += block
        return length

    def _map(self, address: int, wanted: int) -> int:
        """Map pages for ``wanted`` units, or as far as the hole goes; return where the merged free block starts."""
        pages = round_up(wanted, self._page)
        if address == self._top:
            self._top += pages
        else:
            hole = self._remove_hole(address)
            pages = min(pages, hole)
            if pages < hole:
                self._add_hole(address + pages, hole - pages)
        self._driver.obtain("segment_map", address, pages)
        return self.put(address, pages)

    def _unmap_within(self, address: int, size: int) -> None:
        begin = round_up(address, self._page)
        end = (address + size) // self._page * self._page
        if end <= begin:
            return
        self.remove(address)
        if begin > address:
            self.put(address, begin - address)
        if end < address + size:
            self.put(end, address + size - end)
        self._driver.give_back("segment_unmap", begin, end - begin)
        self._open_hole(begin, end)

    def _open_hole(self, begin: int, end: int) -> None:
        before = self._holes_by_end.get(begin)
        if before is not None:
            self._remove_hole(before)
            begin = before
        if end in self._holes:
            end += self._remove_hole(end)
        if end == self._top:
            self._top = begin
        else:
            self._add_hole(begin, end - begin)

    def _add_hole(self, address: int, size: int) -> None:
        self._holes[address] = size
        self._holes_by_end[address + size] = address
        insort(self._starts, address)

    def _remove_hole(self, address: int) -> int:
        size = self._holes.pop(address)
        del self._holes_by_end[address + size]
        del self._starts[bisect_left(self._starts, address)]
        return size
