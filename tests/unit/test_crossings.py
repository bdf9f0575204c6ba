"""The last number within a limit is found in few evaluations, whatever rises."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.crossings import last_within


@pytest.mark.parametrize("last", [1, 7, 500, 4094])
def test_on_a_line_one_number_is_asked_about_beside_the_ends_and_its_neighbour(last: int) -> None:
    line = functools.cache(lambda number: 3 * (number - last) - 1)
    assert last_within(line, 0, 4096) == last
    assert line.cache_info().misses <= 4


def test_a_step_is_found_by_halving_at_the_latest() -> None:
    step = functools.cache(lambda number: 1 if number > 3 else -(10**9))
    assert last_within(step, 0, 4096) == 3
    assert step.cache_info().misses <= 2 + 8 + 12  # the ends, numbers between them by interpolation, and by halving


@given(rises=st.lists(st.integers(0, 100), min_size=2, max_size=200), limit=st.integers(0, 20_000))
def test_a_figure_that_rises_is_cut_where_it_passes_the_limit(rises: list[int], limit: int) -> None:
    figures = [sum(rises[: place + 1]) for place in range(len(rises))]
    within = [place for place, figure in enumerate(figures) if figure <= limit]
    if not within or len(within) == len(figures):
        return
    assert last_within(lambda place: figures[place] - limit, 0, len(figures) - 1) == within[-1]
