"""Timing a data loader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.probe.loader_speed import time_loader
from memplan.results import LoaderSpeed

if TYPE_CHECKING:
    from collections.abc import Iterator


class Loader:
    """Takes so many seconds for each batch, on a clock of its own; the first one of each worker takes ten."""

    def __init__(self, batch_s: float, *, batches: int, workers: int = 0) -> None:
        self.num_workers = workers
        self.now_s = 0.0
        self.made = 0
        self._batch_s = batch_s
        self._batches = batches

    def clock(self) -> float:
        return self.now_s

    def __iter__(self) -> Iterator[None]:
        for number in range(self._batches):
            self.now_s += self._batch_s if number >= self.num_workers else 10.0
            self.made += 1
            yield None


def test_samples_are_counted_for_one_second_after_the_first_batch() -> None:
    loader = Loader(0.5, batches=100)
    assert time_loader(loader, 8, clock=loader.clock) == LoaderSpeed(samples_per_s=16.0, workers=0)
    assert loader.made == 1 + 2


def test_the_first_batch_of_every_worker_is_left_out() -> None:
    loader = Loader(0.25, batches=100, workers=3)
    assert time_loader(loader, 4, clock=loader.clock) == LoaderSpeed(samples_per_s=16.0, workers=3)
    assert loader.made == 3 + 4


def test_an_epoch_that_ends_sooner_is_timed_as_far_as_it_goes() -> None:
    loader = Loader(0.5, batches=2)
    assert time_loader(loader, 8, clock=loader.clock) == LoaderSpeed(samples_per_s=16.0, workers=0)


def test_an_epoch_of_no_more_than_the_first_batches_tells_nothing() -> None:
    for batches in (0, 1, 2):
        loader = Loader(0.5, batches=batches, workers=2)
        assert time_loader(loader, 8, clock=loader.clock) is None
