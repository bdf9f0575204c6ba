"""The largest micro-batch that a training set can fill."""

from __future__ import annotations

import pytest

from memplan.planning.micro_batch_cap import MicroBatchCap, within_data

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
