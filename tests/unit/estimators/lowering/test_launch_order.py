"""The order of launches that holds least."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memplan.estimators.lowering.launch_order import Step, Steps, least_order


def _steps(*steps: tuple[set[int], set[int]], sizes: dict[int, int], outputs: set[int]) -> Steps:
    made = [Step(reads=frozenset(reads), writes=frozenset(writes)) for reads, writes in steps]
    return Steps(steps=made, buffer_bytes=sizes, outputs=outputs)


def test_the_peak_counts_inputs_until_they_are_read_and_outputs_to_the_end() -> None:
    steps = _steps(({0}, {1}), ({1}, {2}), sizes={0: 4, 1: 2, 2: 3}, outputs={2})
    assert steps.peak_bytes([0, 1]) == 4 + 2


def test_a_result_that_nothing_reads_is_freed_at_once() -> None:
    steps = _steps((set(), {0}), (set(), {1}), sizes={0: 5, 1: 5}, outputs=set())
    assert steps.peak_bytes([0, 1]) == 5


def test_what_widens_a_result_waits_until_what_it_does_not_need_is_freed() -> None:
    # Two gradients in half precision, of 1 byte, which are widened to 2; each is made from an input of 4.
    steps = _steps(({0}, {2}), ({2}, {4}), ({1}, {3}), ({3}, {5}), sizes={0: 4, 1: 4, 2: 1, 3: 1, 4: 2, 5: 2},
                   outputs={4, 5})  # fmt: skip
    order = least_order(steps)
    assert steps.peak_bytes(order) == 9
    assert order == [0, 1, 2, 3]  # as the graph has it, where another is no better


def test_another_order_is_taken_where_the_graphs_own_holds_more() -> None:
    steps = _steps((set(), {0}), (set(), {1}), ({0}, {2}), ({1}, {3}), sizes={0: 8, 1: 8, 2: 1, 3: 1}, outputs={2, 3})
    assert steps.peak_bytes([0, 1, 2, 3]) == 17
    assert steps.peak_bytes(least_order(steps)) == 10


@st.composite
def _graphs(draw: st.DrawFn) -> Steps:
    count = draw(st.integers(1, 8))
    reads = [draw(st.sets(st.integers(0, number), max_size=3)) for number in range(count)]  # buffer 0 is an input
    sizes = {number: draw(st.integers(0, 9)) for number in range(count + 1)}
    outputs = draw(st.sets(st.integers(1, count)))
    return _steps(*((found, {number + 1}) for number, found in enumerate(reads)), sizes=sizes, outputs=outputs)


@given(_graphs())
def test_every_launch_comes_once_and_after_what_it_reads_and_none_holds_more_than_before(steps: Steps) -> None:
    order = least_order(steps)
    assert sorted(order) == list(range(len(steps.steps)))
    places = {number: place for place, number in enumerate(order)}
    for number, before in enumerate(steps.predecessors()):
        assert all(places[each] < places[number] for each in before)
    assert steps.peak_bytes(order) <= steps.peak_bytes(range(len(order)))
