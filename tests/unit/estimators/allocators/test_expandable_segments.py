"""Expandable segments, one rule at a time."""

from __future__ import annotations

from memplan.estimators.allocators.allocator_config import AllocatorConfig
from memplan.estimators.allocators.caching_allocator import CachingAllocator, replay
from memplan.estimators.allocators.expandable_segments import ExpandablePool
from memplan.estimators.allocators.segment_pools import DriverMemory
from memplan.units import MIB

EXPANDABLE = AllocatorConfig(expandable_segments=True)
PAGE = 10  # units, so that addresses can be counted by hand


def make_pool() -> tuple[ExpandablePool, DriverMemory]:
    driver = DriverMemory()
    return ExpandablePool(driver, EXPANDABLE, page=PAGE, first_address=0), driver


def take(pool: ExpandablePool, size: int) -> tuple[int, int]:
    return pool.take(size) or pool.extend(size, segment=size)


def test_small_requests_map_2_mib_pages_and_large_ones_20_mib_pages() -> None:
    assert replay([0], [1], config=EXPANDABLE).peak_reserved_bytes == 2 * MIB
    assert replay([0], [30 * MIB], config=EXPANDABLE).peak_reserved_bytes == 40 * MIB


def test_blocks_of_different_requests_merge_whatever_mapped_them() -> None:
    ids, sizes = [0, 1, 0, 1, 2], [10 * MIB, 10 * MIB, 0, 0, 20 * MIB]
    assert replay(ids, sizes).peak_reserved_bytes == 40 * MIB
    assert replay(ids, sizes, config=EXPANDABLE).peak_reserved_bytes == 20 * MIB


def test_any_rest_of_512_bytes_stays_free() -> None:
    assert replay([0], [15 * MIB], config=EXPANDABLE).peak_allocated_bytes == 15 * MIB


def test_the_free_end_of_the_range_grows_by_what_is_missing() -> None:
    pool, driver = make_pool()
    assert take(pool, 5) == (0, 5)
    assert take(pool, 12) == (5, 12)
    assert driver.held_units == 20


def test_a_block_that_cannot_grow_is_preferred_to_a_smaller_one_that_can() -> None:
    pool, _ = make_pool()
    first, _, _ = take(pool, 8), take(pool, 7), take(pool, 1)
    pool.put(*first)  # 8 free at 0, 4 free at 16 before unmapped addresses
    assert take(pool, 3) == (0, 3)


def test_only_whole_free_pages_are_unmapped() -> None:
    pool, driver = make_pool()
    blocks = [take(pool, 5), take(pool, 30), take(pool, 5)]
    pool.put(*blocks[1])
    pool.release_cached()
    assert driver.held_units == 20
    assert sorted(pool.sizes.items()) == [(5, 5), (30, 5)]


def test_an_unmapped_hole_is_mapped_again_before_the_range_grows() -> None:
    pool, driver = make_pool()
    blocks = [take(pool, 5), take(pool, 30), take(pool, 5)]
    pool.put(*blocks[1])
    pool.release_cached()
    assert take(pool, 12) == (5, 12)  # five free, ten of the hole mapped again
    assert driver.held_units == 30


def test_a_hole_that_is_too_small_is_passed_over() -> None:
    pool, driver = make_pool()
    blocks = [take(pool, 10), take(pool, 10), take(pool, 10)]
    pool.put(*blocks[1])
    pool.release_cached()
    assert take(pool, 15) == (30, 15)
    assert driver.held_units == 40


def test_holes_that_meet_become_one() -> None:
    pool, driver = make_pool()
    blocks = [take(pool, 10) for _ in range(4)]
    for each in (blocks[0], blocks[2], blocks[1]):
        pool.put(*each)
        pool.release_cached()
    assert driver.held_units == 10
    assert take(pool, 30) == (0, 30)


def test_unmapping_the_end_of_the_range_lowers_it() -> None:
    pool, driver = make_pool()
    blocks = [take(pool, 10) for _ in range(3)]
    for each in (blocks[1], blocks[2]):
        pool.put(*each)
        pool.release_cached()
    assert take(pool, 40) == (10, 40)
    assert driver.held_units == 50


def test_at_the_limit_free_pages_are_returned_and_the_request_tried_again() -> None:
    ids, sizes = [0, 1, 0, 2], [40 * MIB, 40 * MIB, 0, 60 * MIB]
    peaks = replay(ids, sizes, config=EXPANDABLE, limit_bytes=100 * MIB)
    assert (peaks.alloc_retries, peaks.ran_out_at, peaks.peak_reserved_bytes) == (1, None, 100 * MIB)


def test_changes_are_told_as_maps_and_unmaps() -> None:
    heard: list[tuple[str, int]] = []
    allocator = CachingAllocator(EXPANDABLE, listener=lambda action, _address, size: heard.append((action, size)))
    found = allocator.allocate(1)
    assert found is not None
    allocator.free(*found)
    allocator.release_cached()
    assert heard == [("segment_map", 4096), ("segment_unmap", 4096)]
