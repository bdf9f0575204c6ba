"""Which steps are timed."""

from __future__ import annotations

import pytest

from memplan.probe.commands.events import LoaderUse, StepEnded
from memplan.probe.commands.timed_steps import NOTHING_TIMED, time_steps, usual_passes
from tests.unit.probe.commands.test_batch_source import epoch, step, use


def lasting(durations_s: list[float], passes: list[int] | None = None) -> list[StepEnded]:
    counts = passes or [1] * len(durations_s)
    return [step(duration_s=each, passes=count) for each, count in zip(durations_s, counts, strict=True)]


def test_steps_of_the_warm_up_are_not_timed() -> None:
    assert time_steps(lasting([9.0, 9.0, 1.0, 2.0]), warmup=2).durations_s == (1.0, 2.0)


def test_of_an_epoch_of_a_full_and_a_partial_batch_the_full_ones_are_timed_from_their_first_batch_on() -> None:
    found = time_steps(epoch([1, 1], samples=6) * 3, warmup=2)
    assert found.durations_s == (0.5, 0.5)
    assert found.leaves_out_partial


def test_where_no_loader_tells_the_longer_of_two_lengths_are_timed() -> None:
    found = time_steps(lasting([2.0, 0.1] * 3), warmup=1)
    assert (found.durations_s, found.leaves_out_partial) == ((2.0, 2.0), True)
    alike = time_steps(lasting([2.0, 1.5] * 3), warmup=1)
    assert (len(alike.durations_s), alike.leaves_out_partial) == (5, False)


def test_steps_behind_an_evaluation_are_left_out_where_there_are_others() -> None:
    checked = LoaderUse(
        number=1, begun=True, fetched=1, since_first_s=1.0, asked=4, available=3, drops_last=False, batches=1
    )
    whole = [step(use(begun=True, samples=400)), *(step(use(samples=400)) for _ in range(3))]
    paused = step(use(samples=400), checked, duration_s=60.0)
    assert time_steps([*whole, paused], warmup=2).durations_s == (2.0, 2.0)
    assert time_steps([*whole[:2], paused], warmup=2).durations_s == (60.0,)


@pytest.mark.parametrize(
    ("passes", "timed"),
    [([4, 4, 4, 3], (2.0, 2.0)), ([1, 2, 4, 4], (2.0, 3.0)), ([4, 3, 4, 3], (2.0,))],
)
def test_the_rest_of_accumulation_is_not_timed(passes: list[int], timed: tuple[float, ...]) -> None:
    found = time_steps(lasting([9.0, 2.0, 2.0, 3.0], passes), warmup=1 if passes[1] == 4 else 2)
    assert found.durations_s == timed
    assert found.passes == 4


def test_usual_passes_are_those_of_most_steps_and_of_several_the_largest() -> None:
    assert [usual_passes(each) for each in ([4, 4, 3], [4, 3], [1])] == [4, 4, 1]
    assert NOTHING_TIMED.passes == 1
