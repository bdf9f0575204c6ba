"""The reserved peak alone, for many micro-batch sizes: what a full replay finds, with less bookkeeping.

While nothing limits the allocator and nothing is returned to the driver, what it holds only grows, and its pools, two
for each stream, know nothing of each other. The reserved peak is then what each pool holds at the end, and a pool that
sees the same requests again holds the same again. Replayed in full are expandable segments, blocks that are never
split, events between which cached memory is returned, and torch before 2.12, whose pools share ranges of addresses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memplan.estimators.allocators.allocator_config import UNIT_BYTES, SegmentOrder
from memplan.estimators.allocators.caching_allocator import rounded_units
from memplan.estimators.allocators.segment_addresses import RisingAddresses
from memplan.estimators.allocators.segment_pools import SMALL_REQUEST_UNITS, DriverMemory, SegmentPool
from memplan.estimators.figures import replay_events

if TYPE_CHECKING:
    import numpy.typing as npt

    from memplan.estimators.allocators.allocator_config import AllocatorConfig
    from memplan.estimators.figures import Events

_REMEMBERED_POOLS = 256


class ReservedPeaks:
    """Answers with the reserved peak of one timeline's events under one setting of the allocator.

    Args:
        config: the allocator's settings.
    """

    def __init__(self, config: AllocatorConfig) -> None:
        self._config = config
        has_plain_segments = not config.expandable_segments and config.max_split_size_bytes is None
        self._is_plain = has_plain_segments and config.segment_order is SegmentOrder.AGE
        self._known: dict[bytes, int] = {}

    def of(self, events: Events) -> int:
        """Return the largest number of bytes held from the driver; each block is allocated once and freed once at most.

        Args:
            events: those of the timeline at one micro-batch size.
        """
        if events.cache_returns or not self._is_plain:
            return replay_events(events, self._config).peak_reserved_bytes
        blocks, side_streams = events.blocks, events.side_streams
        units = np.asarray(rounded_units(events.requests_bytes, self._config), dtype=np.int64)
        pool_of_block = np.zeros(events.block_bytes.size, dtype=np.int32)
        pool_of_block[blocks[units > SMALL_REQUEST_UNITS]] = 1
        pool_of_block[list(side_streams)] += 2 * np.array(list(side_streams.values()), dtype=np.int32)
        pools = pool_of_block[blocks]
        own = [pools == each for each in np.unique(pools)]
        held = (self._pool_units(blocks[each], units[each], small=not pools[each][0] % 2) for each in own)
        return sum(held) * UNIT_BYTES

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
        pool = SegmentPool(driver, config, small=small, addresses=RisingAddresses())
        take, put = pool.take, pool.put  # looked up once: the loop runs for every event of every size
        live: dict[int, tuple[int, int]] = {}
        for block, size in zip(block_ids.tolist(), units.tolist(), strict=True):
            if size:
                live[block] = take(size) or pool.extend(size, config.segment_bytes(size * UNIT_BYTES) // UNIT_BYTES)
            else:
                put(*live.pop(block))
        return driver.held_units
