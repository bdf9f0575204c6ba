"""The reserved peak alone, for many micro-batch sizes: what a full replay finds, with less bookkeeping.

While nothing limits the allocator and nothing is returned to the driver, what it holds only grows, and its two pools
know nothing of each other. The reserved peak is then what each pool holds at the end, and a pool that sees the same
requests again holds the same again. Expandable segments, blocks that are never split and events between which cached
memory is returned are replayed in full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memplan.estimators.allocators.allocator_config import UNIT_BYTES
from memplan.estimators.allocators.caching_allocator import replay, rounded_units
from memplan.estimators.allocators.segment_addresses import addresses_from
from memplan.estimators.allocators.segment_pools import SMALL_REQUEST_UNITS, DriverMemory, SegmentPool

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy.typing as npt

    from memplan.estimators.allocators.allocator_config import AllocatorConfig

_REMEMBERED_POOLS = 256


class ReservedPeaks:
    """Answers with the reserved peak of one timeline's events under one setting of the allocator.

    Args:
        config: the allocator's settings.
    """

    def __init__(self, config: AllocatorConfig) -> None:
        self._config = config
        self._is_plain = not config.expandable_segments and config.max_split_size_bytes is None
        self._known: dict[bytes, int] = {}

    def of(
        self,
        block_ids: npt.NDArray[np.int32],
        requests_bytes: npt.NDArray[np.int64],
        cache_returns: Collection[int] = (),
    ) -> int:
        """Return the largest number of bytes held from the driver.

        Args:
            block_ids: which block each event is about; a block is allocated once and freed once at most.
            requests_bytes: bytes the event allocates for its block; 0 frees the block.
            cache_returns: events before which what is cached is returned to the driver.
        """
        if cache_returns or not self._is_plain:
            peaks = replay(block_ids, requests_bytes, config=self._config, cache_returns=cache_returns)
            return peaks.peak_reserved_bytes
        units = np.asarray(rounded_units(requests_bytes, self._config), dtype=np.int64)
        size_of_block = np.zeros(int(block_ids.max(initial=-1)) + 1, dtype=np.int64)
        size_of_block[block_ids[units > 0]] = units[units > 0]
        is_small = size_of_block[block_ids] <= SMALL_REQUEST_UNITS
        held = self._pool_units(block_ids[is_small], units[is_small], small=True)
        held += self._pool_units(block_ids[~is_small], units[~is_small], small=False)
        return held * UNIT_BYTES

    def _pool_units(self, block_ids: npt.NDArray[np.int32], units: npt.NDArray[np.int64], *, small: bool) -> int:
        key = block_ids.tobytes() + units.tobytes()
        held = self._known.get(key)
        if held is None:
            held = self._replayed(block_ids, units, small=small)
            if len(self._known) < _REMEMBERED_POOLS:
                self._known[key] = held
        return held

    def _replayed(self, block_ids: npt.NDArray[np.int32], units: npt.NDArray[np.int64], *, small: bool) -> int:
        """Return what one pool holds after these events, all sizes in units of 512 bytes."""
        driver, config = DriverMemory(), self._config
        pool = SegmentPool(driver, config, small=small, addresses=addresses_from(0, config.segment_order))
        take, put = pool.take, pool.put  # looked up once: the loop runs for every event of every size
        live: dict[int, tuple[int, int]] = {}
        for block, size in zip(block_ids.tolist(), units.tolist(), strict=True):
            if size:
                live[block] = take(size) or pool.extend(size, config.segment_bytes(size * UNIT_BYTES) // UNIT_BYTES)
            else:
                put(*live.pop(block))
        return driver.held_units
