"""The CUDA caching allocator as a replay: what a stream of allocations and frees takes from the card.

Follows ``c10/cuda/CUDACachingAllocator.cpp`` of torch 2.9 to 2.15 for one device. A block is cached for the stream that
it was made on. CUDA graphs have a stream of their own and a pool that keeps all it gets. Not modelled: that one which
other streams use (``record_stream``) is cached later, that garbage is collected on other streams than the default one,
and failures of the driver other than the given limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from memplan.errors import TraceError
from memplan.estimators.allocators.allocator_config import SMALL_SEGMENT_BYTES, UNIT_BYTES, AllocatorConfig
from memplan.estimators.allocators.expandable_segments import ExpandablePool
from memplan.estimators.allocators.segment_addresses import POOL_UNITS, AddressesFrom, addresses_by
from memplan.estimators.allocators.segment_pools import (
    SMALL_REQUEST_UNITS,
    AgeingSegmentPool,
    DriverMemory,
    SegmentPool,
)
from memplan.units import ceil_div, round_up

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from memplan.estimators.allocators.segment_addresses import SegmentAddresses

    _Event = tuple[int, int, int]  # block, requested bytes, rounded units
    _Pool = SegmentPool | ExpandablePool

DEFAULT_CONFIG = AllocatorConfig()
DEFAULT_STREAM = 0
NO_SIDE_STREAMS: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorPeaks:
    """What a replay took.

    Args:
        peak_requested_bytes: largest sum of the requests alive.
        peak_allocated_bytes: largest sum of blocks handed out (``max_memory_allocated``); of active ones likewise, as
            no block is taken to be in use by another stream after it is freed.
        peak_reserved_bytes: largest amount held from the driver (``max_memory_reserved``).
        peak_event_index: event at which the allocated peak is first reached; 0 where nothing was allocated.
        alloc_retries: times the cache was returned to the driver to try again.
        ran_out_at: event whose request failed even after the cache had been returned; None where none did. The other
            figures then cover the events before it.
    """

    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_event_index: int
    alloc_retries: int
    ran_out_at: int | None


class CachingAllocator:
    """The allocator of one device, counting in units of 512 bytes.

    Args:
        config: its settings.
        limit_bytes: what it may hold from the driver, as under ``set_per_process_memory_fraction``; None for no limit.
            Garbage collection needs a limit, as in PyTorch.
        listener: called with each change of what is held, see ``DriverMemory``.
        addresses: where segments lie; None for what the settings say. Expandable ones have their own.
        graph_streams: streams on which CUDA graphs are recorded. What is cached there is never returned, and a request
            from there returns nothing else (``captures_underway``).
    """

    __slots__ = (
        "_addresses",
        "_collector",
        "_config",
        "_graph_streams",
        "_limit_bytes",
        "_pools",
        "alloc_retries",
        "driver",
    )

    def __init__(
        self,
        config: AllocatorConfig,
        *,
        limit_bytes: int | None = None,
        listener: Callable[[str, int, int], None] | None = None,
        addresses: SegmentAddresses | None = None,
        graph_streams: Collection[int] = (),
    ) -> None:
        self._graph_streams = graph_streams
        self._addresses = addresses or addresses_by(config.segment_order)
        self.driver = DriverMemory(listener)
        self.alloc_retries = 0
        self._config = config
        self._limit_bytes = limit_bytes
        self._collector: AgeingSegmentPool | None = None
        self._pools = {DEFAULT_STREAM: self._make_pools(DEFAULT_STREAM)}

    def pools(self, stream: int = DEFAULT_STREAM) -> tuple[_Pool, _Pool]:
        """Return the pools of a stream, that of requests up to 1 MiB first."""
        found = self._pools.get(stream)
        if found is None:
            found = self._pools[stream] = self._make_pools(stream)
        return found

    def allocate(self, size: int, stream: int = DEFAULT_STREAM) -> tuple[int, int] | None:
        """Hand out a block for a rounded size; return its address and size, or None where the limit forbids it."""
        pool = self.pools(stream)[size > SMALL_REQUEST_UNITS]
        return pool.take(size) or self.extend(pool, size)

    def free(self, address: int, size: int, stream: int = DEFAULT_STREAM) -> None:
        """Take a block back; nothing is returned to the driver."""
        self.pools(stream)[size > SMALL_REQUEST_UNITS].put(address, size)

    def release_cached(self) -> None:
        """Return all that is free and whole, as ``torch.cuda.empty_cache`` does."""
        for stream, (small, large) in self._pools.items():
            if stream not in self._graph_streams:
                large.release_cached()
                small.release_cached()

    def _make_pools(self, stream: int) -> tuple[_Pool, _Pool]:
        config, driver = self._config, self.driver
        begin, middle = 2 * stream * POOL_UNITS, (2 * stream + 1) * POOL_UNITS
        if config.expandable_segments:
            small_page, large_page = SMALL_SEGMENT_BYTES // UNIT_BYTES, config.large_segment_size_bytes // UNIT_BYTES
            return (
                ExpandablePool(driver, config, page=small_page, first_address=round_up(begin + 1, small_page)),
                ExpandablePool(driver, config, page=large_page, first_address=round_up(middle, large_page)),
            )
        of_small, of_large = (AddressesFrom(each, self._addresses) for each in (begin, middle))
        small = SegmentPool(driver, config, small=True, addresses=of_small)
        if stream != DEFAULT_STREAM or not config.garbage_collection_threshold or self._limit_bytes is None:
            return small, SegmentPool(driver, config, small=False, addresses=of_large)
        self._collector = AgeingSegmentPool(driver, config, small=False, addresses=of_large)
        return small, self._collector

    def extend(self, pool: _Pool, size: int) -> tuple[int, int] | None:
        """Obtain memory for a block no free one of its pool serves; return its address and size, or None."""
        segment = self._config.segment_bytes(size * UNIT_BYTES) // UNIT_BYTES
        self._collect_garbage()
        if self._has_room(segment) or (pool.release_oversize(size) and self._has_room(segment)):
            return pool.extend(size, segment)
        if any(pool in self.pools(stream) for stream in self._graph_streams):
            return None
        self.release_cached()
        self.alloc_retries += 1
        return pool.extend(size, segment) if self._has_room(segment) else None

    def _has_room(self, segment: int) -> bool:
        return self._limit_bytes is None or (self.driver.held_units + segment) * UNIT_BYTES <= self._limit_bytes

    def _collect_garbage(self) -> None:
        if self._collector is None or self._limit_bytes is None:
            return
        threshold_bytes = int(self._config.garbage_collection_threshold * self._limit_bytes)
        excess_bytes = self.driver.held_units * UNIT_BYTES - threshold_bytes
        if excess_bytes > 0:
            self._collector.collect_garbage(ceil_div(excess_bytes, UNIT_BYTES))


def replay(
    block_ids: Sequence[int] | npt.NDArray[np.int32],
    sizes: Sequence[int] | npt.NDArray[np.int64],
    *,
    config: AllocatorConfig = DEFAULT_CONFIG,
    limit_bytes: int | None = None,
    cache_returns: Collection[int] = (),
    dispensable: Container[int] = (),
    side_streams: Mapping[int, int] = NO_SIDE_STREAMS,
    graph_streams: Collection[int] = (),
) -> AllocatorPeaks:
    """Run events through a fresh allocator, in order.

    Args:
        block_ids: which block each event is about.
        sizes: bytes the event allocates for its block, as requested; 0 frees the block.
        config: the allocator's settings.
        limit_bytes: what the allocator may hold from the driver; None for no limit.
        cache_returns: events before which what is cached is returned to the driver, as by ``torch.cuda.empty_cache``.
        dispensable: blocks that are done without where they cannot be had.
        side_streams: the stream of each block that is not made on the default stream, by block.
        graph_streams: those of them on which CUDA graphs are recorded.

    Raises:
        TraceError: a block is freed that is not allocated, or allocated twice.
    """
    ids, requests = np.asarray(block_ids).tolist(), np.asarray(sizes, dtype=np.int64)
    allocator = CachingAllocator(config, limit_bytes=limit_bytes, graph_streams=graph_streams)
    of_default_stream, extend = allocator.pools(), allocator.extend
    live: dict[int, tuple[tuple[int, int], int]] = {}
    requested = peak_requested = allocated = peak_allocated = peak_index = 0
    ran_out_at: int | None = None
    events = enumerate(zip(ids, requests.tolist(), rounded_units(requests, config), strict=True))
    for index, (block, request, size) in _releasing(events, allocator, cache_returns) if cache_returns else events:
        if size:
            pools = allocator.pools(side_streams[block]) if block in side_streams else of_default_stream
            pool = pools[size > SMALL_REQUEST_UNITS]  # as in allocate, without its call
            found = pool.take(size) or extend(pool, size)
            if found is None:
                if block in dispensable:
                    continue
                ran_out_at = index
                break
            if block in live:
                raise TraceError(f"event {index} allocates block {block}, which is already allocated")
            live[block] = (found, request)
            requested += request
            allocated += found[1]
            if requested > peak_requested:  # noqa: PLR1730 - a call of max would cost a tenth of the loop
                peak_requested = requested
            if allocated > peak_allocated:
                peak_allocated, peak_index = allocated, index
        else:
            if block not in live:
                if block in dispensable:
                    continue
                raise TraceError(f"event {index} frees block {block}, which is not allocated")
            (address, held), freed = live.pop(block)
            pools = allocator.pools(side_streams[block]) if block in side_streams else of_default_stream
            pools[held > SMALL_REQUEST_UNITS].put(address, held)
            requested -= freed
            allocated -= held
    return AllocatorPeaks(
        peak_requested_bytes=peak_requested,
        peak_allocated_bytes=peak_allocated * UNIT_BYTES,
        peak_reserved_bytes=allocator.driver.peak_units * UNIT_BYTES,
        peak_event_index=peak_index,
        alloc_retries=allocator.alloc_retries,
        ran_out_at=ran_out_at,
    )


def _releasing(
    events: Iterable[tuple[int, _Event]], allocator: CachingAllocator, cache_returns: Collection[int]
) -> Iterator[tuple[int, _Event]]:
    """Yield numbered events, and return what is cached to the driver before some."""
    returns = frozenset(cache_returns)
    for index, event in events:
        if index in returns:
            allocator.release_cached()
        yield index, event


def is_small(address: int) -> bool:
    """Whether an address, in units of 512 bytes, belongs to a pool of requests up to 1 MiB."""
    return address // POOL_UNITS % 2 == 0


def stream_of(address: int) -> int:
    """Return the stream that an address, in units of 512 bytes, belongs to."""
    return address // (2 * POOL_UNITS)


def rounded_units(requests: npt.NDArray[np.int64], config: AllocatorConfig) -> list[int]:
    """Round every request as the allocator does, in units of 512 bytes; 0 stays 0."""
    if not any(config.roundup_power2_divisions):
        plain: list[int] = (-(-requests // UNIT_BYTES)).tolist()
        return plain
    distinct, positions = np.unique(requests, return_inverse=True)
    units = [config.rounded_bytes(each) // UNIT_BYTES if each else 0 for each in distinct.tolist()]
    rounded: list[int] = np.asarray(units, dtype=np.int64)[positions].tolist()
    return rounded
