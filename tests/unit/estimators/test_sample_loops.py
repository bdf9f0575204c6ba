"""Loops over samples, unrolled for a micro-batch."""

from __future__ import annotations

import numpy as np
import pytest

from memplan.estimators.sample_loops import SampleLoops
from memplan.estimators.step_trace import Timeline

# A batch of two and one further sample: made (0), looped over forward (1, 2), all (3), and backward (4), then the end.
LOOPS = SampleLoops(
    least_samples=2, event_loops=np.array([0, 1, 1, 0, 2, 0], dtype=np.int32), runs_backward=(False, True)
)


@pytest.mark.parametrize(
    ("micro_batch_size", "events", "rounds"),
    [
        (1, [0, 3, 5], [0, 0, 0]),
        (2, [0, 3, 5], [0, 0, 0]),
        (3, [0, 1, 2, 3, 4, 5], [0, 0, 0, 0, 0, 0]),
        (5, [0, 1, 2, 1, 2, 1, 2, 3, 4, 4, 4, 5], [0, 0, 0, 1, 1, 2, 2, 0, 2, 1, 0, 0]),
    ],
)
def test_each_sample_more_is_a_round_more(micro_batch_size: int, events: list[int], rounds: list[int]) -> None:
    found, of_rounds = LOOPS.unrolled(micro_batch_size)
    assert (found.tolist(), of_rounds.tolist()) == (events, rounds)


def test_events_move_by_the_rounds_before_them() -> None:
    assert LOOPS.positions(4).tolist() == [0, 1, 3, 5, 6, 8, 9]


def test_blocks_of_further_rounds_are_like_the_first_rounds_and_come_last() -> None:
    timeline = Timeline(
        event_blocks=np.array([0, 1, 2, 2, 1, 0], dtype=np.int32),
        event_allocates=np.array([True, True, True, False, False, False]),
        event_phases=np.zeros(6, dtype=np.int8),
        step_starts=np.array([3], dtype=np.int32),
        size_terms=np.array([[0, 10, 0], [4, 0, 7], [0, 0, 0]], dtype=np.float64),
        components=np.array([0, 1, 2], dtype=np.int8),
        modules=np.array([0, 0, 1], dtype=np.int32),
        operators=np.array([0, 1, 2], dtype=np.int32),
        module_names=("", "a"),
        operator_names=("batch", "made", "all"),
        side_streams={1: 3},
        cache_returns=np.array([5], dtype=np.int32),
        loops=SampleLoops(
            least_samples=2, event_loops=np.array([0, 1, 0, 0, 2, 0], dtype=np.int32), runs_backward=(False, True)
        ),
    )
    unrolled = timeline.unrolled(5)
    assert unrolled.event_blocks.tolist() == [0, 1, 3, 4, 2, 2, 4, 3, 1, 0]
    assert unrolled.block_bytes(5).tolist() == [20, 10, 35, 10, 10]
    assert unrolled.components.tolist() == [0, 1, 2, 1, 1]
    assert unrolled.side_streams == {1: 3, 3: 3, 4: 3}
    assert (unrolled.step_starts.tolist(), unrolled.cache_returns.tolist()) == ([5], [9])
    assert unrolled.unrolled(5) is unrolled
    assert timeline.unrolled(2).event_blocks.tolist() == [0, 2, 2, 0]
