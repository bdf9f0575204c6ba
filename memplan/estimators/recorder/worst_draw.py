"""Steps that branch by random numbers or unknown conditions: trace a few draws, keep the one with the highest peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.errors import WorkloadError
from memplan.estimators.fake_tensors.random_draws import HIGH, LOW, MIDDLE, RandomDraws
from memplan.estimators.recorder.user_calls import is_fake_tensor_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.estimators.recorder.recording import Recording
    from memplan.estimators.recorder.step_recording import RecordedRun


class WorstDrawRecorder:
    """Records one step at several sizes, always with the draw whose peak is highest at the first size.

    A step that draws nothing is run once per size.

    Args:
        record: runs the step at a micro-batch size with given draws.
    """

    def __init__(self, record: Callable[[int, RandomDraws], RecordedRun]) -> None:
        self._record = record
        self._chosen: float | None = None

    def record(self, micro_batch_size: int) -> RecordedRun:
        """Run the step at a micro-batch size.

        Raises:
            WorkloadError: a workload function breaks its contract, fails on fake tensors or raises with every draw.
        """
        if self._chosen is None:
            return self._record_first(micro_batch_size)
        return self._record(micro_batch_size, self.draws())

    def draws(self) -> RandomDraws:
        """Return fresh draws of the chosen kind."""
        return RandomDraws(MIDDLE if self._chosen is None else self._chosen)

    def _record_first(self, micro_batch_size: int) -> RecordedRun:
        """Run the step with a middle, a low and a high draw, and choose the one with the highest peak."""
        failure: WorkloadError | None = None
        runs: dict[float, RecordedRun] = {}
        for fraction in (MIDDLE, LOW, HIGH):
            draws = RandomDraws(fraction)
            try:
                runs[fraction] = self._record(micro_batch_size, draws)
            except WorkloadError as error:
                if is_fake_tensor_failure(error):  # this draw may run on real tensors, and have the highest peak
                    raise
                failure = failure or error
            if not draws.were_read:  # the other draws would give the same run
                break
        if failure is not None and not runs:
            raise failure
        self._chosen = max(runs, key=lambda each: _size(runs[each].recording))
        return runs[self._chosen]


def _size(recording: Recording) -> tuple[int, int]:
    """Return the peak of a run, and what all of its blocks take: a small batch may have its peak in another phase."""
    return recording.peak_bytes, sum(recording.block_bytes)
