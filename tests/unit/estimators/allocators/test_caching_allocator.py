"""The caching allocator, one rule at a time; 1 unit here is what the driver, the pools or the limit count in."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import pytest

from memplan.errors import TraceError
from memplan.estimators.allocators.allocator_config import AllocatorConfig, SegmentOrder
from memplan.estimators.allocators.caching_allocator import AllocatorPeaks, replay
from memplan.units import KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

MAX_SPLIT = AllocatorConfig.parse("max_split_size_mb:64")


def run(
    *events: tuple[str, int],
    config: AllocatorConfig | None = None,
    limit_bytes: int | None = None,
    side_streams: Mapping[str, int] = MappingProxyType({}),
    graph_streams: Collection[int] = (),
    cache_returns: Collection[int] = (),
):
    """Replay ``(name, bytes)`` pairs; 0 bytes frees the block of that name."""
    names = sorted({name for name, _ in events})
    return replay(
        [names.index(name) for name, _ in events],
        [size for _, size in events],
        config=config or AllocatorConfig(),
        limit_bytes=limit_bytes,
        side_streams={names.index(name): stream for name, stream in side_streams.items()},
        graph_streams=graph_streams,
        cache_returns=cache_returns,
    )


def test_nothing_allocated_takes_nothing() -> None:
    assert replay([], []) == AllocatorPeaks(
        peak_requested_bytes=0, peak_allocated_bytes=0, peak_reserved_bytes=0, peak_event_index=0, alloc_retries=0,
        ran_out_at=None,
    )  # fmt: skip


def test_one_byte_is_allocated_as_512_bytes_of_a_2_mib_segment() -> None:
    peaks = run(("a", 1))
    assert (peaks.peak_requested_bytes, peaks.peak_allocated_bytes, peaks.peak_reserved_bytes) == (1, 512, 2 * MIB)


def test_small_requests_share_a_segment_until_it_is_full() -> None:
    assert run(("a", MIB), ("b", MIB)).peak_reserved_bytes == 2 * MIB
    assert run(("a", MIB), ("b", MIB), ("c", 1)).peak_reserved_bytes == 4 * MIB


def test_requests_above_1_mib_come_from_the_large_pool() -> None:
    assert run(("a", MIB + 1)).peak_reserved_bytes == 20 * MIB
    assert run(("a", MIB + 1), ("b", MIB)).peak_reserved_bytes == 22 * MIB


EXPANDABLE = AllocatorConfig(expandable_segments=True)


@pytest.mark.parametrize("config", [AllocatorConfig(), EXPANDABLE], ids=["segments", "expandable"])
@pytest.mark.parametrize(("size", "segment"), [(MIB, 2 * MIB), (20 * MIB, 20 * MIB)], ids=["small", "large"])
def test_a_block_is_used_again_on_its_own_stream_only(size: int, segment: int, config: AllocatorConfig) -> None:
    events = (("a", size), ("a", 0), ("b", size), ("b", 0), ("c", size))
    assert run(*events, config=config).peak_reserved_bytes == segment
    assert run(*events, config=config, side_streams={"b": 1}).peak_reserved_bytes == 2 * segment
    assert run(*events, config=config, side_streams={"b": 1, "c": 2}).peak_reserved_bytes == 3 * segment
    assert run(*events, config=config, side_streams={"b": 1, "c": 1}).peak_allocated_bytes == size


def test_under_a_limit_what_other_streams_cache_is_returned() -> None:
    peaks = run(("a", 20 * MIB), ("a", 0), ("b", 20 * MIB), limit_bytes=30 * MIB, side_streams={"a": 1})
    assert (peaks.peak_reserved_bytes, peaks.alloc_retries, peaks.ran_out_at) == (20 * MIB, 1, None)


@pytest.mark.parametrize("config", [AllocatorConfig(), EXPANDABLE], ids=["segments", "expandable"])
def test_what_a_cuda_graph_took_is_not_returned(config: AllocatorConfig) -> None:
    events = (("a", 20 * MIB), ("a", 0), ("b", 20 * MIB))
    of_stream = run(*events, config=config, side_streams={"a": 1}, cache_returns=[2])
    of_graph = run(*events, config=config, side_streams={"a": 1}, cache_returns=[2], graph_streams=[1])
    assert (of_stream.peak_reserved_bytes, of_graph.peak_reserved_bytes) == (20 * MIB, 40 * MIB)
    full = run(*events, config=config, side_streams={"a": 1}, graph_streams=[1], limit_bytes=30 * MIB)
    assert (full.alloc_retries, full.ran_out_at) == (1, 2)


def test_nothing_is_returned_for_what_a_cuda_graph_asks_for() -> None:
    events = (("a", 20 * MIB), ("a", 0), ("b", 20 * MIB))
    full = run(*events, side_streams={"b": 1}, graph_streams=[1], limit_bytes=30 * MIB)
    assert (full.peak_reserved_bytes, full.alloc_retries, full.ran_out_at) == (20 * MIB, 0, 2)


def test_requests_between_1_and_10_mib_share_a_20_mib_segment() -> None:
    assert run(("a", 8 * MIB), ("b", 8 * MIB)).peak_reserved_bytes == 20 * MIB
    assert run(("a", 8 * MIB), ("b", 8 * MIB), ("c", 8 * MIB)).peak_reserved_bytes == 40 * MIB


def test_requests_of_10_mib_and_more_get_a_segment_of_their_own() -> None:
    assert run(("a", 10 * MIB), ("b", 15 * MIB)).peak_reserved_bytes == 26 * MIB


def test_a_large_block_whose_rest_is_at_most_1_mib_is_handed_out_whole() -> None:
    peaks = run(("a", 15 * MIB))
    assert (peaks.peak_requested_bytes, peaks.peak_allocated_bytes) == (15 * MIB, 16 * MIB)


def test_a_large_block_whose_rest_is_above_1_mib_is_split() -> None:
    assert run(("a", 15 * MIB - 512)).peak_allocated_bytes == 15 * MIB - 512


def test_a_freed_block_is_used_again() -> None:
    peaks = run(("a", 30 * MIB), ("a", 0), ("b", 20 * MIB))
    assert peaks.peak_reserved_bytes == 30 * MIB


def test_the_smallest_block_that_fits_is_used() -> None:
    frees = [("a", 40 * MIB), ("b", 20 * MIB), ("a", 0), ("b", 0)]
    assert run(*frees, ("c", 20 * MIB), ("d", 40 * MIB)).peak_reserved_bytes == 60 * MIB


@pytest.mark.parametrize(("order", "reserved_mib"), [(SegmentOrder.AGE, 56), (SegmentOrder.ADDRESS, 40)])
def test_the_version_of_torch_decides_between_equal_blocks(order: SegmentOrder, reserved_mib: int) -> None:
    # Two segments of 20 MiB with 11 free each. By age 5 go into the first, and the 15 need a segment of 16; by address
    # they go into the second, which lies lower, and the first is whole again for the 15.
    elevens = [("a", 9 * MIB), ("b", 9 * MIB), ("c", 9 * MIB), ("b", 0)]
    config = AllocatorConfig(segment_order=order)
    taken = run(*elevens, ("d", 5 * MIB), ("a", 0), ("e", 15 * MIB), config=config)
    assert taken.peak_reserved_bytes == reserved_mib * MIB


def test_neighbours_in_one_segment_merge() -> None:
    halves = [("a", 8 * MIB), ("b", 12 * MIB - 512), ("a", 0), ("b", 0)]
    assert run(*halves, ("c", 20 * MIB)).peak_reserved_bytes == 20 * MIB


def test_neighbouring_segments_do_not_merge() -> None:
    segments = [("a", 10 * MIB), ("b", 10 * MIB), ("a", 0), ("b", 0)]
    assert run(*segments, ("c", 20 * MIB)).peak_reserved_bytes == 40 * MIB


def test_free_memory_in_the_small_pool_does_not_serve_large_requests() -> None:
    many = [(f"s{i}", MIB) for i in range(20)]
    freed = [(name, 0) for name, _ in many]
    assert run(*many, *freed, ("large", 10 * MIB)).peak_reserved_bytes == 30 * MIB


def test_the_event_of_the_allocated_peak_may_precede_that_of_the_reserved_peak() -> None:
    peaks = run(("a", 20 * MIB), ("b", 20 * MIB), ("a", 0), ("b", 0), ("c", 30 * MIB))
    assert (peaks.peak_event_index, peaks.peak_allocated_bytes, peaks.peak_reserved_bytes) == (1, 40 * MIB, 70 * MIB)


def test_the_requested_peak_may_fall_at_another_event_than_the_allocated_peak() -> None:
    peaks = run(("a", 15 * MIB), ("a", 0), ("b", 11 * MIB), ("c", 5 * MIB - 512))
    assert (peaks.peak_requested_bytes, peaks.peak_allocated_bytes) == (16 * MIB - 512, 16 * MIB)


def test_a_limit_of_just_enough_needs_no_retry() -> None:
    peaks = run(("a", 10 * MIB), ("b", 10 * MIB), limit_bytes=20 * MIB)
    assert (peaks.alloc_retries, peaks.ran_out_at) == (0, None)


def test_at_the_limit_the_cache_is_returned_and_the_request_tried_again() -> None:
    peaks = run(("a", 20 * MIB), ("a", 0), ("b", 30 * MIB), limit_bytes=40 * MIB)
    assert (peaks.alloc_retries, peaks.ran_out_at, peaks.peak_reserved_bytes) == (1, None, 30 * MIB)


def test_a_segment_in_partial_use_is_not_returned() -> None:
    peaks = run(("a", 8 * MIB), ("b", 8 * MIB), ("a", 0), ("c", 30 * MIB), limit_bytes=40 * MIB)
    assert (peaks.alloc_retries, peaks.ran_out_at, peaks.peak_reserved_bytes) == (1, 3, 20 * MIB)


def test_a_request_counts_against_the_limit_with_its_whole_segment() -> None:
    assert run(("a", MIB + 1), limit_bytes=20 * MIB - 1).ran_out_at == 0


def test_a_block_that_can_be_dispensed_with_does_not_end_the_replay() -> None:
    events = ([0, 1, 1, 2], [20 * MIB, 40 * MIB, 0, 20 * MIB])
    assert replay(*events, limit_bytes=40 * MIB).ran_out_at == 1
    without = replay(*events, limit_bytes=40 * MIB, dispensable={1})
    assert (without.ran_out_at, without.alloc_retries, without.peak_reserved_bytes) == (None, 1, 40 * MIB)


def test_figures_after_running_out_cover_the_events_before_it() -> None:
    peaks = run(("a", 10 * MIB), ("b", 20 * MIB), ("c", 5 * MIB), limit_bytes=15 * MIB)
    assert (peaks.ran_out_at, peaks.peak_requested_bytes) == (1, 10 * MIB)


def test_oversize_blocks_are_never_split() -> None:
    oversize = [("a", 100 * MIB), ("a", 0)]
    assert run(*oversize, ("b", 81 * MIB), ("c", 11 * MIB), config=MAX_SPLIT).peak_reserved_bytes == 112 * MIB
    assert run(*oversize, ("b", 81 * MIB), ("c", 11 * MIB)).peak_reserved_bytes == 100 * MIB


def test_an_oversize_block_does_not_serve_a_normal_request() -> None:
    assert run(("a", 64 * MIB), ("a", 0), ("b", 30 * MIB), config=MAX_SPLIT).peak_reserved_bytes == 94 * MIB


def test_an_oversize_request_takes_a_block_less_than_20_mib_larger() -> None:
    freed = [("a", 90 * MIB), ("a", 0)]
    assert run(*freed, ("b", 70 * MIB), config=MAX_SPLIT).peak_reserved_bytes == 160 * MIB
    peaks = run(*freed, ("b", 70 * MIB + 512), config=MAX_SPLIT)
    assert (peaks.peak_reserved_bytes, peaks.peak_allocated_bytes) == (90 * MIB, 90 * MIB)


def test_at_the_limit_the_smallest_oversize_block_that_makes_room_is_returned_without_a_retry() -> None:
    freed = [("a", 100 * MIB), ("b", 110 * MIB), ("a", 0), ("b", 0)]
    events = [*freed, ("c", 76 * MIB), ("d", 100 * MIB)]
    peaks = run(*events, config=MAX_SPLIT, limit_bytes=250 * MIB)
    assert (peaks.alloc_retries, peaks.ran_out_at, peaks.peak_reserved_bytes) == (0, None, 210 * MIB)
    assert run(*events, config=MAX_SPLIT).peak_reserved_bytes == 286 * MIB


def test_at_the_limit_the_largest_oversize_blocks_are_returned_until_there_is_room() -> None:
    freed = [("a", 80 * MIB), ("b", 100 * MIB), ("s", 30 * MIB), ("a", 0), ("b", 0), ("s", 0)]
    peaks = run(*freed, ("c", 120 * MIB), ("d", 30 * MIB), config=MAX_SPLIT, limit_bytes=250 * MIB)
    assert (peaks.alloc_retries, peaks.ran_out_at, peaks.peak_reserved_bytes) == (0, None, 210 * MIB)


def test_a_garbage_collection_returns_the_older_half_above_the_threshold() -> None:
    config = AllocatorConfig.parse("garbage_collection_threshold:0.5")
    events = [("a", 20 * MIB), ("b", 22 * MIB), ("c", 24 * MIB), ("a", 0), ("d", 30 * MIB), ("b", 0), ("e", 40 * MIB)]
    collected = run(*events, config=config, limit_bytes=160 * MIB)
    assert (collected.peak_reserved_bytes, collected.alloc_retries) == (116 * MIB, 0)
    assert run(*events, limit_bytes=160 * MIB).peak_reserved_bytes == 136 * MIB


def test_garbage_collection_does_nothing_without_a_limit() -> None:
    config = AllocatorConfig.parse("garbage_collection_threshold:0.1")
    events = [("a", 20 * MIB), ("a", 0), ("b", 40 * MIB)]
    assert run(*events, config=config).peak_reserved_bytes == 60 * MIB
    assert run(*events, config=config, limit_bytes=100 * MIB).peak_reserved_bytes == 40 * MIB


def test_large_segments_can_be_larger() -> None:
    config = AllocatorConfig.parse("large_segment_size_mb:100")
    assert run(("a", 8 * MIB), ("b", 8 * MIB), ("c", 8 * MIB), config=config).peak_reserved_bytes == 100 * MIB


def test_rounding_to_divisions_raises_what_is_allocated() -> None:
    config = AllocatorConfig.parse("roundup_power2_divisions:2")
    assert run(("a", 5 * KIB), config=config).peak_allocated_bytes == 6 * KIB


def test_arrays_serve_as_well_as_lists() -> None:
    assert replay(np.array([7, 7, 7]), np.array([MIB, 0, 600])) == replay([7, 7, 7], [MIB, 0, 600])


def test_a_block_that_is_not_allocated_cannot_be_freed() -> None:
    with pytest.raises(TraceError, match="event 1 frees block 4, which is not allocated"):
        replay([3, 4], [MIB, 0])


def test_a_block_cannot_be_allocated_twice() -> None:
    with pytest.raises(TraceError, match="event 1 allocates block 3, which is already allocated"):
        replay([3, 3], [MIB, MIB])


def test_cached_memory_that_is_returned_is_not_held_beside_what_comes_after() -> None:
    ids, sizes = [0, 0, 1], [20 * MIB, 0, 40 * MIB]
    assert replay(ids, sizes).peak_reserved_bytes == 60 * MIB
    assert replay(ids, sizes, cache_returns=(2,)).peak_reserved_bytes == 40 * MIB
    assert replay(ids, sizes, cache_returns=(1,)).peak_reserved_bytes == 60 * MIB  # it is in use
