"""Pools of the caching allocator: best fit among free blocks, splitting and merging inside segments.

All sizes and addresses here are counted in units of 512 bytes, which every block is a multiple of. A free block is
known by its key, ``size << KEY_SHIFT | address``, so that sorted keys are in the allocator's order: by size, then by
address. Segments never touch each other, which keeps merging inside one segment.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from memplan.estimators.allocators.allocator_config import SMALL_REQUEST_BYTES, UNIT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.estimators.allocators.allocator_config import AllocatorConfig
    from memplan.estimators.allocators.segment_addresses import SegmentAddresses

KEY_SHIFT = 44  # addresses up to 2**53 bytes
ADDRESS_MASK = (1 << KEY_SHIFT) - 1
UNLIMITED_UNITS = 1 << KEY_SHIFT
SMALL_REQUEST_UNITS = SMALL_REQUEST_BYTES // UNIT_BYTES

_NEVER_SPLIT = UNLIMITED_UNITS


class DriverMemory:
    """What the allocator holds from the driver.

    Args:
        listener: called with the allocator's own trace action (``segment_alloc``, ``segment_free``, ``segment_map``,
            ``segment_unmap``), address and size in units, at each change; None where nobody listens.
    """

    __slots__ = ("_listener", "held_units", "peak_units")

    def __init__(self, listener: Callable[[str, int, int], None] | None = None) -> None:
        self.held_units = 0
        self.peak_units = 0
        self._listener = listener

    def obtain(self, action: str, address: int, size: int) -> None:
        """Count ``size`` more units."""
        self.held_units += size
        self.peak_units = max(self.peak_units, self.held_units)
        if self._listener is not None:
            self._listener(action, address, size)

    def give_back(self, action: str, address: int, size: int) -> None:
        """Count ``size`` units less."""
        self.held_units -= size
        if self._listener is not None:
            self._listener(action, address, size)


class FreeBlocks:
    """Free blocks in the allocator's order, each findable by both of its ends."""

    __slots__ = ("keys", "sizes", "starts_by_end")

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.sizes: dict[int, int] = {}
        self.starts_by_end: dict[int, int] = {}

    def put(self, address: int, size: int) -> int:
        """Add a block, merged with the free blocks it touches; return the address of the merged block."""
        sizes, starts_by_end, keys = self.sizes, self.starts_by_end, self.keys
        end = address + size
        before = starts_by_end.pop(address, None)
        if before is not None:
            size_before = sizes[before]
            del keys[bisect_left(keys, size_before << KEY_SHIFT | before)]
            address = before
            size += size_before
        size_after = sizes.pop(end, None)
        if size_after is not None:
            del keys[bisect_left(keys, size_after << KEY_SHIFT | end)]
            end += size_after
            size += size_after
        sizes[address] = size
        starts_by_end[end] = address
        insort(keys, size << KEY_SHIFT | address)
        return address

    def remove(self, address: int) -> int:
        """Take the free block at an address out; return its size."""
        size = self.sizes.pop(address)
        del self.starts_by_end[address + size]
        del self.keys[bisect_left(self.keys, size << KEY_SHIFT | address)]
        return size

    def carve(self, position: int, size: int, least_rest: int) -> tuple[int, int]:
        """Hand out the free block at a position in ``keys``; a rest of more than ``least_rest`` stays free.

        Returns:
            Address and size of the block handed out.
        """
        key = self.keys.pop(position)
        address = key & ADDRESS_MASK
        block_size = key >> KEY_SHIFT
        end = address + block_size
        del self.sizes[address]
        rest = block_size - size
        if rest <= least_rest:
            del self.starts_by_end[end]
            return address, block_size
        rest_address = address + size
        self.sizes[rest_address] = rest
        self.starts_by_end[end] = rest_address
        insort(self.keys, rest << KEY_SHIFT | rest_address)
        return address, size


class SegmentPool(FreeBlocks):
    """A pool of whole segments, each one ``cudaMalloc``.

    Args:
        driver: where segments come from.
        config: when blocks are split, and which are never.
        small: whether this is the pool of requests up to 1 MiB.
        addresses: where they lie.
    """

    __slots__ = ("_addresses", "_driver", "_least_rest", "_max_rounding", "_max_split", "_segments")

    def __init__(
        self, driver: DriverMemory, config: AllocatorConfig, *, small: bool, addresses: SegmentAddresses
    ) -> None:
        super().__init__()
        self._driver = driver
        self._segments: dict[int, int] = {}
        self._addresses = addresses
        self._least_rest = 0 if small else SMALL_REQUEST_UNITS
        self._max_split = max_split_units(config)
        self._max_rounding = config.max_non_split_rounding_bytes // UNIT_BYTES

    def take(self, size: int) -> tuple[int, int] | None:
        """Hand out the smallest free block that fits; return its address and size, or None where none fits."""
        position = bisect_left(self.keys, size << KEY_SHIFT)
        if position == len(self.keys):
            return None
        if self._max_split == UNLIMITED_UNITS:
            return self.carve(position, size, self._least_rest)
        block_size = self.keys[position] >> KEY_SHIFT
        if is_refused(size, block_size, self._max_split, self._max_rounding):
            return None
        return self._hand_out(position, size)

    def extend(self, size: int, segment: int) -> tuple[int, int]:
        """Obtain a segment and hand out its front; return address and size of the block."""
        address = self._addresses.place(segment)
        self._segments[address] = segment
        self._driver.obtain("segment_alloc", address, segment)
        self.put(address, segment)
        return self._hand_out(bisect_left(self.keys, segment << KEY_SHIFT | address), size)

    def release_cached(self) -> None:
        """Return every segment that is free as a whole."""
        for key in self.keys.copy():
            self._release_if_whole(key)

    def release_oversize(self, size: int) -> bool:
        """Return the smallest oversize block whose release makes ``size`` fit, else the largest ones until they do.

        Returns:
            Whether enough was returned; always False where blocks of any size are split.
        """
        if self._max_split == UNLIMITED_UNITS:
            return False
        wanted = max(size, self._max_split)
        position = bisect_left(self.keys, wanted << KEY_SHIFT)
        if position < len(self.keys):
            self._release_if_whole(self.keys[position])
            return True
        released = 0
        for key in reversed(self.keys.copy()):
            if released >= wanted or key >> KEY_SHIFT < self._max_split:
                break
            released += self._release_if_whole(key)
        return released >= wanted

    def _hand_out(self, position: int, size: int) -> tuple[int, int]:
        least_rest = self._least_rest if size < self._max_split else _NEVER_SPLIT
        return self.carve(position, size, least_rest)

    def _is_whole(self, key: int) -> bool:
        return self._segments.get(key & ADDRESS_MASK) == key >> KEY_SHIFT

    def _release_if_whole(self, key: int) -> int:
        if not self._is_whole(key):
            return 0
        address = key & ADDRESS_MASK
        del self._segments[address]
        size = self.remove(address)
        self._driver.give_back("segment_free", address, size)
        return size


class AgeingSegmentPool(SegmentPool):
    """A pool of segments that knows how many requests ago each block was freed, and can return the old ones."""

    __slots__ = ("_freed_at", "_requests")

    def __init__(
        self, driver: DriverMemory, config: AllocatorConfig, *, small: bool, addresses: SegmentAddresses
    ) -> None:
        super().__init__(driver, config, small=small, addresses=addresses)
        self._requests = 0
        self._freed_at: dict[int, int] = {}

    def take(self, size: int) -> tuple[int, int] | None:
        """Hand out a block as ``SegmentPool.take`` does, and count the request."""
        self._requests += 1
        return super().take(size)

    def put(self, address: int, size: int) -> int:
        """Take a block back as ``FreeBlocks.put`` does, and note when."""
        merged_address = super().put(address, size)
        self._freed_at[merged_address] = self._requests
        return merged_address

    def collect_garbage(self, wanted: int) -> None:
        """Return whole segments of at least mean age, again and again, until ``wanted`` units are back or none is left.

        A round is not cut short once enough is back: PyTorch does so to collect less often.
        """
        ages = {key: self._requests - self._freed_at[key & ADDRESS_MASK] for key in self.keys if self._is_whole(key)}
        reclaimed = 0
        while ages and reclaimed < wanted:
            mean_age = sum(ages.values()) / len(ages)
            for key in [key for key, age in ages.items() if age >= mean_age]:
                del ages[key]
                reclaimed += self._release_if_whole(key)


def max_split_units(config: AllocatorConfig) -> int:
    """Return the size from which blocks are never split, or ``UNLIMITED_UNITS``."""
    return UNLIMITED_UNITS if config.max_split_size_bytes is None else config.max_split_size_bytes // UNIT_BYTES


def is_refused(size: int, block_size: int, max_split: int, max_rounding: int) -> bool:
    """Whether the best-fitting block is kept back: oversize for a normal request, or too large for an oversize one."""
    if size < max_split:
        return block_size >= max_split
    return block_size >= size + max_rounding
