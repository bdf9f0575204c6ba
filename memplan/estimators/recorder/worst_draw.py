"""Runs of a step that chooses by random numbers: of a few draws, the one that takes most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.errors import WorkloadError
from memplan.estimators.fake_tensors.random_draws import HIGH, LOW, MIDDLE, RandomDraws
from memplan.estimators.recorder.user_calls import is_fake_tensor_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.estimators.recorder.step_recording import RecordedRun


class WorstDrawRecorder:
    """Records runs of one step, which are all made with the draw that takes most at the first size.

    A step that draws nothing is run once a size.

    Args:
        record: runs the step at a micro-batch with some draws.
    """

    def __init__(self, record: Callable[[int, RandomDraws], RecordedRun]) -> None:
        self._record = record
        self._chosen: float | None = None

    def record(self, micro_batch_size: int) -> RecordedRun:
        """Run the step at a micro-batch.

        Raises:
            WorkloadError: one of the workload's functions raises, with every draw or because of fake tensors, or breaks
                its contract.
        """
        if self._chosen is None:
            return self._record_first(micro_batch_size)
        return self._record(micro_batch_size, self.draws())

    def draws(self) -> RandomDraws:
        """Return the chosen draws, unasked yet."""
        return RandomDraws(MIDDLE if self._chosen is None else self._chosen)

    def _record_first(self, micro_batch_size: int) -> RecordedRun:
        """Run the step with every draw if it draws, and choose among them."""
        failure: WorkloadError | None = None
        runs: dict[float, RecordedRun] = {}
        for fraction in (MIDDLE, LOW, HIGH):
            draws = RandomDraws(fraction)
            try:
                runs[fraction] = self._record(micro_batch_size, draws)
            except WorkloadError as error:
                if is_fake_tensor_failure(error):  # with real tensors this draw, too, would run, and may take most
                    raise
                failure = failure or error
            if not draws.were_read:
                break
        if failure is not None and not runs:
            raise failure
        self._chosen = max(runs, key=lambda each: runs[each].recording.peak_bytes)
        return runs[self._chosen]
