"""Runs that differ by rounds of loops over samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from memplan.estimators.recorder.looping_runs import looping_timeline
from memplan.estimators.recorder.recording import Recording
from memplan.results import Component
from tests.making import convolution

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memplan.estimators.step_trace import Timeline


class Step:
    """Records a step as an operator after another would."""

    def __init__(self, samples: int) -> None:
        self.recording = Recording(micro_batch_size=samples)
        self.weight = self.make(1000, "weight")

    def make(self, size_bytes: int, operator: str) -> int:
        return self.recording.allocate(size_bytes, Component.TEMPORARIES, module="", operator=operator)

    def free(self, *blocks: int) -> None:
        for block in blocks:
            self.recording.free(block)


def listed(samples: int) -> Recording:
    """Images and labels in lists; what is made of each image is freed once all lie in one tensor."""
    step = Step(samples)
    images = [step.make(100, "batch") for _ in range(samples)]
    labels = [step.make(8, "batch") for _ in range(samples)]
    scaled = []
    for _ in images:
        converted = step.make(400, "convert")
        scaled.append(step.make(400, "divide"))
        step.free(converted)
    together = step.make(400 * samples, "stack")
    step.free(*scaled)
    step.free(together, *images, *labels)
    return step.recording


def kept(samples: int) -> Recording:
    """What is kept of each sample is freed in the backward pass, from the last sample on; gradients are summed."""
    step = Step(samples)
    activations = [step.make(50, "sine") for _ in range(samples)]
    total = None
    for activation in reversed(activations):
        gradient = step.make(1000, "gradient")
        step.free(activation)
        if total is None:
            total = gradient
        else:
            summed = step.make(1000, "add")
            step.free(total, gradient)
            total = summed
    step.free(total or 0)
    return step.recording


def assigned(samples: int) -> Recording:
    """A name holds one result of each sample until the next one's is assigned to it; another stays in a list."""
    step = Step(samples)
    stays, held = [], None
    for _ in range(samples):
        result = step.make(200, "maximum")
        if held is not None:
            step.free(held)
        held = result
        stays.append(step.make(200, "maximum"))
    together = step.make(200 * samples, "concatenate")
    step.free(*stays, held or 0)
    step.free(together)
    return step.recording


def paired(samples: int) -> Recording:
    """Costs of every pair lie in one tensor, of which each sample's part is taken."""
    step = Step(samples)
    costs = step.make(12 * samples * samples, "costs")
    for _ in range(samples):
        step.free(step.make(36, "costs"))
    step.free(costs)
    return step.recording


def live_bytes(blocks: Sequence[int], allocates: Sequence[bool], sizes: Sequence[int]) -> list[int]:
    return np.cumsum(
        [sizes[block] * (1 if made else -1) for block, made in zip(blocks, allocates, strict=True)]
    ).tolist()


def assert_has_steps_of(timeline: Timeline | None, record: Callable[[int], Recording], samples: int) -> None:
    assert timeline is not None
    unrolled, run = timeline.unrolled(samples), record(samples)
    found = live_bytes(unrolled.event_blocks, unrolled.event_allocates, unrolled.block_bytes(samples))
    recorded = live_bytes(run.event_blocks, run.event_allocates, run.block_bytes)
    allocates = np.array(run.event_allocates)
    assert unrolled.event_allocates.tolist() == run.event_allocates
    assert np.array(found)[allocates].tolist() == np.array(recorded)[allocates].tolist()  # frees may come in any order
    assert found[-1] == recorded[-1]


@pytest.mark.parametrize(
    ("record", "traced"),
    [
        pytest.param(listed, (2, 3, 5), id="loops side by side over samples in lists"),
        pytest.param(kept, (3, 4, 6), id="a backward pass whose first round sums no gradients"),
        pytest.param(assigned, (3, 4, 6), id="a name that holds what the round before made"),
        pytest.param(paired, (2, 3, 5, 6), id="a block that grows with the square"),
    ],
)
def test_steps_on_more_samples_have_more_rounds(record: Callable[[int], Recording], traced: tuple[int, ...]) -> None:
    timeline = looping_timeline([record(samples) for samples in traced])
    for samples in (traced[0], 9, 40):
        assert_has_steps_of(timeline, record, samples)


def test_the_rounds_of_a_backward_pass_free_what_the_last_sample_made_first() -> None:
    timeline = looping_timeline([kept(samples) for samples in (3, 4, 6)])
    assert timeline is not None
    assert timeline.loops is not None
    assert timeline.loops.runs_backward == (False, True)


def test_a_convolution_of_each_sample_has_a_workspace_of_its_own() -> None:
    def convolved(samples: int) -> Recording:
        step = Step(samples)
        for _ in range(samples):
            step.free(
                step.recording.allocate(
                    64, Component.WORKSPACES, module="", operator="convolution", kernel_call=convolution()
                )
            )
        return step.recording

    timeline = looping_timeline([convolved(samples) for samples in (2, 3, 5)])
    assert timeline is not None
    assert timeline.unrolled(9).workspaces.blocks.size == 9


def ragged(samples: int) -> Recording:
    """Each sample is larger than the one before."""
    step = Step(samples)
    step.free(*[step.make(100 + 10 * number, "batch") for number in range(samples)])
    return step.recording


def of_pairs(samples: int) -> Recording:
    """A loop over all pairs of samples."""
    step = Step(samples)
    for _ in range(samples * samples):
        step.free(step.make(100, "compare"))
    return step.recording


def uneven(samples: int) -> Recording:
    """Every second sample takes something more."""
    step = Step(samples)
    for number in range(samples):
        step.free(step.make(100, "odd" if number % 2 else "even"))
    return step.recording


@pytest.mark.parametrize("record", [ragged, of_pairs, uneven])
def test_steps_that_differ_otherwise_have_no_timeline_for_all(record: Callable[[int], Recording]) -> None:
    assert looping_timeline([record(samples) for samples in (2, 3, 5, 6, 7)]) is None


def test_a_third_run_must_prove_it() -> None:
    assert looping_timeline([listed(2), listed(3)]) is None
    assert looping_timeline([listed(2), listed(4), listed(5)]) is None
    assert looping_timeline([paired(2), paired(3), paired(5)]) is None
