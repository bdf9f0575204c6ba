# ruff: noqa: S311 - nothing is kept secret
"""Of a step that chooses by random numbers, the draw that takes most is recorded."""

from __future__ import annotations

import random

import pytest

from memplan.errors import WorkloadError
from memplan.estimators.fake_tensors.random_draws import HIGH, LOW, MIDDLE, RandomDraws
from memplan.estimators.recorder.recording import Recording
from memplan.estimators.recorder.step_recording import RecordedRun
from memplan.estimators.recorder.worst_draw import WorstDrawRecorder
from memplan.results import Component


class Steps:
    """Steps that take one byte for each layer that they do not drop, of ten."""

    def __init__(self, kept_from: float | None) -> None:
        self.kept_from = kept_from
        self.runs: list[tuple[int, float]] = []

    def run(self, size: int, draws: RandomDraws) -> RecordedRun:
        self.runs.append((size, draws.fraction))
        recording = Recording(micro_batch_size=size)
        with draws.intercepted():
            kept = sum(self.kept_from is None or random.random() >= self.kept_from for _ in range(10))
        if not kept:
            raise WorkloadError("the loss does not require grad")
        recording.allocate(kept, Component.ACTIVATIONS, module="", operator="layer")
        return RecordedRun(recording=recording, optimizer_name="SGD", unknown_calls=(), notes=draws.notes)


def test_a_step_that_draws_nothing_runs_once_a_size() -> None:
    steps = Steps(None)
    runs = WorstDrawRecorder(steps.run)
    assert [runs.record(size).recording.peak_bytes for size in (2, 3)] == [10, 10]
    assert steps.runs == [(2, MIDDLE), (3, MIDDLE)]


def test_every_size_runs_with_the_draw_that_took_most_at_the_first() -> None:
    steps = Steps(0.7)
    runs = WorstDrawRecorder(steps.run)
    assert [runs.record(size).recording.peak_bytes for size in (2, 3)] == [10, 10]
    assert steps.runs == [(2, MIDDLE), (2, LOW), (2, HIGH), (3, HIGH)]
    assert runs.draws().fraction == HIGH


def test_a_step_that_fails_with_every_draw_tells_of_the_first() -> None:
    with pytest.raises(WorkloadError, match="does not require grad"):
        WorstDrawRecorder(Steps(1.1).run).record(2)


def test_a_draw_that_fake_tensors_alone_cannot_run_is_not_passed_over() -> None:
    steps = Steps(0.3)

    def run(size: int, draws: RandomDraws) -> RecordedRun:
        if draws.fraction == HIGH:
            raise WorkloadError("the value of a tensor is read") from NotImplementedError()
        return steps.run(size, draws)

    with pytest.raises(WorkloadError, match="value of a tensor"):
        WorstDrawRecorder(run).record(2)
