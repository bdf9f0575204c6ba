"""Timing a data loader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from memplan.errors import WorkloadError
from memplan.probe.loader_speed import time_loader
from memplan.results import LoaderSpeed

if TYPE_CHECKING:
    from collections.abc import Iterator


class Loader:
    """Makes batches of all workers together, so many seconds after the last ones, on a clock of its own."""

    def __init__(self, batch_s: float, *, batches: int, workers: int = 0, batch_size: int | None = 8) -> None:
        self.num_workers = workers
        self.batch_size = batch_size
        self.now_s = 0.0
        self.made = 0
        self._batch_s = batch_s
        self._batches = batches

    def clock(self) -> float:
        return self.now_s

    def __iter__(self) -> Iterator[Any]:
        for number in range(self._batches):
            if number % max(1, self.num_workers) == 0:
                self.now_s += self._batch_s if number else 10.0
            self.made += 1
            yield {"text": torch.zeros(3, 5), "lengths": [1, 2, 3]}


def test_samples_are_counted_for_one_second_after_the_first_batch() -> None:
    loader = Loader(0.5, batches=100)
    assert time_loader(loader, 8, clock=loader.clock) == LoaderSpeed(samples_per_s=16.0, workers=0)
    assert loader.made == 1 + 2


def test_whole_rounds_of_all_workers_are_timed_after_the_first() -> None:
    loader = Loader(2.0, batches=100, workers=3)
    assert time_loader(loader, 8, clock=loader.clock) == LoaderSpeed(samples_per_s=3 * 8 / 2, workers=3)
    assert loader.made == 3 + 3


def test_an_epoch_that_ends_sooner_is_timed_as_far_as_whole_rounds_go() -> None:
    loader = Loader(0.25, batches=3 * 2 + 1, workers=2)
    assert time_loader(loader, 8, clock=loader.clock) == LoaderSpeed(samples_per_s=2 * 8 / 0.25, workers=2)


def test_batches_that_a_sampler_makes_of_its_own_size_are_counted_as_they_are() -> None:
    loader = Loader(0.5, batches=100, batch_size=None)
    assert time_loader(loader, 8, clock=loader.clock) == LoaderSpeed(samples_per_s=6.0, workers=0)


@pytest.mark.parametrize(
    ("batches", "workers", "problem"),
    [
        (0, 0, "it has no batch"),
        (1, 0, "it has one batch"),
        (1, 2, "it has not one batch for each of its 2 workers"),
        (3, 2, "it has not two batches for each of its 2 workers"),
    ],
)
def test_an_epoch_too_short_to_tell_is_told(batches: int, workers: int, problem: str) -> None:
    loader = Loader(0.5, batches=batches, workers=workers)
    with pytest.raises(WorkloadError, match=f"^{problem}$"):
        time_loader(loader, 8, clock=loader.clock)


def test_several_loaders_are_none() -> None:
    with pytest.raises(WorkloadError, match="a list is no data loader"):
        time_loader([Loader(0.5, batches=9)], 8)
