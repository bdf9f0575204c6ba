"""What a timeline says of its blocks."""

from __future__ import annotations

from memplan.estimators.recorder.recording import Recording
from memplan.estimators.recorder.size_fits import fit_timeline
from memplan.results import Component
from memplan.units import MIB


def test_a_block_belongs_to_the_step_that_allocates_it() -> None:
    recording = Recording(micro_batch_size=2)
    recording.allocate(MIB, Component.PARAMETERS, module="", operator="weight")
    for _ in range(2):
        recording.step_starts.append(len(recording.event_blocks))
        recording.free(recording.allocate(MIB, Component.ACTIVATIONS, module="", operator="made"))
    timeline = fit_timeline([recording])
    assert timeline.allocations.tolist() == [0, 1, 3]
    assert timeline.steps.tolist() == [-1, 0, 1]
