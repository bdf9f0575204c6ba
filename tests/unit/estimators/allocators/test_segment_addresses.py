"""Where segments lie: by age they rise; a driver's ranges of 32 MiB fall, what they have left is filled upwards."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memplan.estimators.allocators.allocator_config import SegmentOrder
from memplan.estimators.allocators.segment_addresses import POOL_UNITS, addresses_by

MIB_UNITS = 2048


def order(*sizes_mib: int, by: SegmentOrder = SegmentOrder.ADDRESS) -> list[int]:
    """Which of these segments lies lowest, which next, and so on."""
    addresses = addresses_by(by)
    placed = [addresses.place(size * MIB_UNITS) for size in sizes_mib]
    return sorted(range(len(placed)), key=placed.__getitem__)


def test_by_age_each_segment_lies_above_the_one_before() -> None:
    assert order(20, 512, 1024, 20, by=SegmentOrder.AGE) == [0, 1, 2, 3]


def test_each_large_segment_lies_below_the_one_before() -> None:
    assert order(20, 512, 1024, 20) == [3, 2, 1, 0]


def test_small_segments_rise_inside_a_range_and_the_next_range_lies_below() -> None:
    assert order(*[2] * 17) == [16, *range(16)]


def test_what_a_range_has_left_is_given_to_the_next_segment_that_fits() -> None:
    # 34 MiB leave 30 of 64: the 20 fit above the 34, the first 12 only in a range of their own, the second above it.
    assert order(34, 20, 12, 12) == [2, 3, 0, 1]


def test_of_two_ranges_with_room_the_newer_is_taken() -> None:
    assert order(34, 34, 20, 20) == [1, 2, 0, 3]


@given(st.lists(st.integers(min_value=1, max_value=200), max_size=60), st.sampled_from(SegmentOrder))
def test_no_two_segments_touch_and_none_lies_beyond_its_pool(sizes_mib: list[int], by: SegmentOrder) -> None:
    addresses = addresses_by(by)
    placed = sorted((addresses.place(size * MIB_UNITS), size * MIB_UNITS) for size in sizes_mib)
    ends = [begin + size for begin, size in placed]
    assert all(end < begin for end, (begin, _) in zip(ends, placed[1:], strict=False))
    assert all(0 < begin < POOL_UNITS for begin, _ in placed)
