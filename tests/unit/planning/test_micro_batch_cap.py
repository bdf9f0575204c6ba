"""The largest micro-batch that a training set can fill."""

from __future__ import annotations

import pytest

from memplan.planning.micro_batch_cap import MicroBatchCap, notes_on_unfilled, within_data
from memplan.recipe import Recipe

ASKED = MicroBatchCap(size=64, reason="asked for")


@pytest.mark.parametrize(
    ("samples", "world_size", "size"), [(30, 1, 30), (30, 4, 7), (2, 4, 1), (64, 1, 64), (5000, 1, 64), (100, 2, 50)]
)
def test_every_replica_fills_its_batch_from_its_share(samples: int, world_size: int, size: int) -> None:
    assert within_data(ASKED, samples, world_size).size == size


def test_a_cap_by_the_data_says_so() -> None:
    said = within_data(ASKED, 30, 4).reason
    assert said == "The training set has 30 samples, 7 for each of 4 replicas: they fill no larger micro-batch."
    assert within_data(ASKED, 64, 1).reason == "asked for"


def test_a_current_micro_batch_that_the_data_do_not_fill_is_told() -> None:
    (note,) = notes_on_unfilled(within_data(ASKED, 30, 1), Recipe(micro_batch_size=31))
    assert note.startswith("the training set does not even fill the current micro-batch of 31")


def test_nothing_is_told_where_the_data_fill_the_current_micro_batch_or_do_not_limit_it() -> None:
    assert notes_on_unfilled(within_data(ASKED, 30, 1), Recipe(micro_batch_size=30)) == ()
    assert notes_on_unfilled(ASKED, Recipe(micro_batch_size=65)) == ()
