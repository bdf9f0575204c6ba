"""Which copies are made while kernels are timed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.estimators.temporaries.timed_copies import TimedCopies

UNIT = 512  # the allocator's


def not_made(
    peak: int, kept: int, cache: int, *changed: int, variant_count: int = 1, unit_bytes: int = UNIT
) -> list[list[int]]:
    """Return the tensors of which each variant has no copies, where sizes are of so many units.

    Args:
        peak: what was allocated at once before.
        kept: what is allocated while variants are timed.
        cache: what overwrites the cache.
        changed: the tensors that the kernel changes.
        variant_count: how many variants are timed.
        unit_bytes: how large a unit is.
    """
    sizes, events = [kept, peak - kept], [(0, True), (1, True), (1, False)]
    rows: list[tuple[int, int, int]] = []

    def copied(timing: int) -> list[int]:
        made = []
        for place, size in enumerate(changed):
            made.append(len(sizes))
            rows.append((len(sizes), timing, place))
            sizes.append(size)
        return made

    for timing in range(variant_count):
        first = copied(timing)
        second = [len(sizes)]
        sizes.append(cache)
        second += copied(timing)
        for made in (first, second):
            events += [(block, True) for block in made] + [(block, False) for block in reversed(made)]
    blocks, timings, places = np.array(rows, dtype=np.int32).T
    event_blocks, event_allocates = zip(*events, strict=True)
    omitted = TimedCopies(blocks=blocks, timings=timings, places=places).not_made(
        np.array(sizes) * unit_bytes, np.array(event_blocks, dtype=np.int32), np.array(event_allocates)
    )
    return [
        sorted({place for block, of, place in rows if of == timing and block in omitted})
        for timing in range(variant_count)
    ]


@pytest.mark.parametrize(
    ("peak", "omitted"),
    [
        pytest.param(14, [0, 1], id="none fits"),
        pytest.param(15, [0], id="the second fits where the first does not"),
        pytest.param(18, [1], id="the first leaves no room for the second"),
        pytest.param(23, [], id="both fit"),
    ],
)
def test_copies_are_made_one_after_another_where_they_fit_below_the_peak(peak: int, omitted: list[int]) -> None:
    assert not_made(peak, 10, 0, 8, 5) == [omitted]


def test_what_overwrites_the_cache_makes_room_for_the_next_variants_copies() -> None:
    assert not_made(10, 10, 7, 6, 3, variant_count=4) == [[0, 1], [1], [], []]


@pytest.mark.parametrize(("copied_bytes", "omitted"), [(512, []), (513, [0])])
def test_the_room_is_counted_in_whole_blocks_of_the_allocator(copied_bytes: int, omitted: list[int]) -> None:
    assert not_made(2, 1, 0, copied_bytes, unit_bytes=1) == [omitted]


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40), st.lists(st.integers(1, 40), min_size=1, max_size=3))
def test_first_copies_are_within_the_peak(kept: int, more: int, cache: int, changed: list[int]) -> None:
    (omitted,) = not_made(kept + more, kept, cache, *changed)
    made = sum(size for place, size in enumerate(changed) if place not in omitted)
    assert made <= more
    assert all(made + changed[place] > more for place in omitted if place == len(changed) - 1)
