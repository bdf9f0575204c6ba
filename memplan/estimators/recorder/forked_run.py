"""A run of a step that a fork does beside others, where each of them takes long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from memplan.children import Forks
from memplan.estimators.fake_tensors.random_draws import MIDDLE, RandomDraws

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.estimators.recorder.step_recording import RecordedRun

_PATIENCE, _LEAST_PATIENCE_S = 3, 30.0  # times that what runs beside it took


class ForkedRun:
    """Begins a run at a micro-batch size, with the draws that are traced first.

    Args:
        micro_batch_size: the size.
        record: runs the step at a micro-batch size with given draws.
    """

    def __init__(self, micro_batch_size: int, record: Callable[[int, RandomDraws], RecordedRun]) -> None:
        self._forks = Forks()
        self._micro_batch_size = micro_batch_size
        self._began_s = time.monotonic()
        self._forks.start(lambda: record(micro_batch_size, RandomDraws(MIDDLE)), yields=False)

    def found(self, micro_batch_size: int, draws: RandomDraws) -> RecordedRun | None:
        """Return the run if it is one of this size with these draws; None also where it failed or takes too long."""
        if micro_batch_size != self._micro_batch_size or draws.fraction != MIDDLE:
            return None
        took_s = time.monotonic() - self._began_s
        return next(iter(self._forks.results(within_s=max(_LEAST_PATIENCE_S, _PATIENCE * took_s))), None)
