"""The reserved peak alone, for many micro-batch sizes: the caching allocator's replay without its bookkeeping.

While nothing limits the allocator and nothing is returned to the driver, what it holds only grows, and its two pools
know nothing of each other. The reserved peak is then what each pool holds at the end, and a pool that sees the same
requests again holds the same again. Expandable segments and blocks that are never split are replayed in full.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

import numpy as np

from memplan.estimators.allocators.allocator import DEFAULT_CONFIG, replay, rounded_units
from memplan.estimators.allocators.allocator_config import UNIT_BYTES
from memplan.estimators.allocators.allocator_pools import ADDRESS_MASK, KEY_SHIFT, SMALL_REQUEST_UNITS
from memplan.estimators.allocators.segment_addresses import addresses_from

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from memplan.estimators.allocators.allocator_config import AllocatorConfig
    from memplan.estimators.allocators.segment_addresses import SegmentAddresses

_REMEMBERED_POOLS = 256


class ReservedPeaks:
    """Answers with the reserved peak of one timeline's events under one setting of the allocator.

    Args:
        config: the allocator's settings.
    """

    def __init__(self, config: AllocatorConfig = DEFAULT_CONFIG) -> None:
        self._config = config
        self._is_plain = not config.expandable_segments and config.max_split_size_bytes is None
        self._known: dict[bytes, int] = {}

    def of(self, block_ids: npt.NDArray[np.int32], requests_bytes: npt.NDArray[np.int64]) -> int:
        """Return the largest number of bytes held from the driver.

        Args:
            block_ids: which block each event is about; a block is allocated once and freed once at most.
            requests_bytes: bytes the event allocates for its block; 0 frees the block.
        """
        if not self._is_plain:
            return replay(block_ids.tolist(), requests_bytes.tolist(), config=self._config).peak_reserved_bytes
        units = np.asarray(rounded_units(requests_bytes, self._config), dtype=np.int64)
        size_of_block = np.zeros(int(block_ids.max(initial=-1)) + 1, dtype=np.int64)
        size_of_block[block_ids[units > 0]] = units[units > 0]
        is_small = size_of_block[block_ids] <= SMALL_REQUEST_UNITS
        held = self._pool_units(block_ids[is_small], units[is_small], least_rest=0)
        held += self._pool_units(block_ids[~is_small], units[~is_small], least_rest=SMALL_REQUEST_UNITS)
        return held * UNIT_BYTES

    def _pool_units(self, block_ids: npt.NDArray[np.int32], units: npt.NDArray[np.int64], *, least_rest: int) -> int:
        key = block_ids.tobytes() + units.tobytes()
        held = self._known.get(key)
        if held is None:
            addresses = addresses_from(0, self._config.segment_order)
            held = pool_units(block_ids.tolist(), units.tolist(), least_rest, self._segment_units, addresses)
            if len(self._known) < _REMEMBERED_POOLS:
                self._known[key] = held
        return held

    def _segment_units(self, size: int) -> int:
        return self._config.segment_bytes(size * UNIT_BYTES) // UNIT_BYTES


def pool_units(
    block_ids: Sequence[int],
    units: Sequence[int],
    least_rest: int,
    segment_units: Callable[[int], int],
    addresses: SegmentAddresses,
) -> int:
    """Return what one pool of whole segments holds after these events, all sizes in units of 512 bytes.

    The rules are those of ``SegmentPool``: best fit by size and then address, a rest of more than ``least_rest`` is
    split off, free neighbours merge. Written out in one loop, because a call for each event would double its time.
    Blocks, free or not, are known by their key, ``size << KEY_SHIFT | address``.
    """
    free: list[int] = []
    free_by_start: dict[int, int] = {}
    free_by_end: dict[int, int] = {}
    live = [0] * (max(block_ids, default=0) + 1)
    held = 0
    for block, size in zip(block_ids, units, strict=True):
        if size:
            position = bisect_left(free, size << KEY_SHIFT)
            if position < len(free):
                key = free.pop(position)
                address, found = key & ADDRESS_MASK, key >> KEY_SHIFT
                del free_by_start[address], free_by_end[address + found]
            else:
                found = segment_units(size)
                address = addresses.place(found)
                held += found
            rest = found - size
            if rest > least_rest:
                live[block] = size << KEY_SHIFT | address
                key = rest << KEY_SHIFT | address + size
                free_by_start[address + size] = free_by_end[address + found] = key
                insort(free, key)
            else:
                live[block] = found << KEY_SHIFT | address
        else:
            key = live[block]
            address = key & ADDRESS_MASK
            end = address + (key >> KEY_SHIFT)
            before = free_by_end.pop(address, None)
            if before is not None:
                del free[bisect_left(free, before)]
                address = before & ADDRESS_MASK
            after = free_by_start.pop(end, None)
            if after is not None:
                del free[bisect_left(free, after)]
                end += after >> KEY_SHIFT
            key = end - address << KEY_SHIFT | address
            free_by_start[address] = free_by_end[end] = key
            insort(free, key)
    return held
