"""Which loader is trained on, and what that says of steps, from uses that can be counted on the fingers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memplan.probe.commands.batch_source import (
    durations_s,
    loader_trained_on,
    partial_steps,
    paused_steps,
    samples_of_split,
    samples_short_of,
)
from memplan.probe.commands.events import LoaderUse, StepEnded
from tests.making import ended_step


def use(fetched: int = 1, *, number: int = 0, begun: bool = False, samples: int = 12, **facts: object) -> LoaderUse:
    """A use of a loader in batches of four."""
    values = {"asked": 4, "available": samples, "drops_last": False, "batches": -(-samples // 4), **facts}
    return LoaderUse(number=number, begun=begun, fetched=fetched, since_first_s=0.5 if begun else None, **values)


def step(*loaders: LoaderUse, passes: int = 1, duration_s: float = 2.0) -> StepEnded:
    return ended_step(loaders=loaders, passes=passes, duration_s=duration_s)


def epoch(fetched: list[int], *, samples: int = 12, passes: int = 1, **facts: object) -> list[StepEnded]:
    uses = [use(count, begun=place == 0, samples=samples, **facts) for place, count in enumerate(fetched)]
    return [step(each, passes=passes) if each.fetched else step(passes=passes) for each in uses]


CHECKED = use(2, number=1, begun=True, samples=3)  # on a few samples, between steps


def test_the_loader_that_most_steps_have_a_batch_of_is_trained_on() -> None:
    assert loader_trained_on(epoch([1, 1, 1])) == 0
    assert loader_trained_on(epoch([2, 1, 0])) == 0
    assert loader_trained_on([step(CHECKED), step(), step()]) is None  # the script makes its batches by itself
    assert loader_trained_on([step(use(), CHECKED), step(use()), step(use())]) == 0
    assert loader_trained_on([step(use(), CHECKED)] * 3) is None  # zipped, or checked in each step
    assert loader_trained_on([]) is None


@pytest.mark.parametrize(
    ("fetched", "samples", "facts", "partial"),
    [
        ([1, 1, 1], 10, {}, [False, False, True]),
        ([2, 1, 0], 10, {}, [False, False, True]),  # fetched one ahead
        ([1, 1, 1], 12, {}, [False, False, False]),
        ([1, 1, 1], 14, {"drops_last": True, "batches": 3}, [False, False, False]),
        ([1], 3, {}, [False]),  # all there is, in each step
        ([3, 0, 0], 10, {}, None),  # by a thread that fetches as it likes
        ([1, 1, 1], 8, {}, None),  # more batches than it says there are
        ([1, 1, 1], 10, {"asked": None}, None),
    ],
)
def test_a_last_batch_of_fewer_samples_is_told_by_its_place(
    fetched: list[int], samples: int, facts: dict[str, object], partial: list[bool] | None
) -> None:
    found = partial_steps(epoch(fetched, samples=samples, **facts) * 2)
    assert found == (None if partial is None else partial * 2)


def test_the_rest_of_an_epoch_under_accumulation_is_counted_in_passes() -> None:
    first, rest = step(use(2, begun=True, samples=10), passes=2), step(use(1, samples=10), passes=1)
    assert partial_steps([first, rest, first, rest]) == [False, True, False, True]


def test_several_passes_over_one_batch_say_nothing_of_places() -> None:
    assert partial_steps(epoch([1, 1, 1], samples=10, passes=2)) is None


def test_data_that_do_not_fill_a_batch_are_told_of_the_training_alone() -> None:
    short = step(use(begun=True, samples=3))
    assert samples_short_of([short, short]) == (4, 3)
    assert samples_short_of(epoch([1, 1, 1])) is None
    assert samples_short_of([step(use(), CHECKED), step(use()), step(use())]) is None
    endless = [step(use(begun=True, samples=3)), step(use(samples=3))]  # of a sampler whose length is of no account
    assert samples_short_of(endless) is None


@pytest.mark.parametrize(
    ("micro_batch_size", "passes", "samples"),
    [
        (12, 3, 4),
        (15, 3, 4),  # the rest is left out
        (4, 3, None),  # several losses of a whole micro-batch
        (12, 2, None),  # who knows what the script does
        (12, 1, None),  # batches that were put together before
        (7, 1, 4),  # no more than four at a time
    ],
)
def test_a_script_that_splits_a_micro_batch_is_told_by_its_batches_and_passes(
    micro_batch_size: int, passes: int, samples: int | None
) -> None:
    steps = epoch([passes] * 3, samples=9 * passes * 4, passes=passes)
    assert samples_of_split(steps, micro_batch_size=micro_batch_size, passes=passes) == samples
    assert samples_of_split([step()], micro_batch_size=micro_batch_size, passes=passes) is None


def test_a_step_that_begins_an_epoch_took_what_passed_since_its_first_batch() -> None:
    assert durations_s(epoch([1, 1, 1])) == [0.5, 2.0, 2.0]
    assert durations_s([step(), step()]) == [2.0, 2.0]
    assert durations_s(epoch([4, 0, 0], samples=16)) == [2.0, 2.0, 2.0]  # a thread may have begun it at any time


def test_steps_behind_an_evaluation_amid_an_epoch_are_told() -> None:
    steps = [step(use(begun=True), CHECKED), step(use()), step(use(), CHECKED), step(use())]
    assert paused_steps(steps) == [False, False, True, False]
    assert paused_steps([step(CHECKED), step()]) == [False, False]
    amid = step(replace(use(2, begun=True), since_first_s=None), CHECKED, passes=2)
    assert paused_steps([step(use(begun=True)), amid, step(use())]) == [False, True, False]
