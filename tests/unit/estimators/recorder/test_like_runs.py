"""Runs of compiled code at two sizes, whose blocks are nearly the same."""

from __future__ import annotations

import pytest

from memplan.estimators.recorder.like_runs import in_structure_of
from memplan.estimators.recorder.recording import Recording
from memplan.results import Component, Phase


def recorded(micro_batch_size: int, blocks: list[tuple[str, int]]) -> Recording:
    """Return a run of one step whose forward pass makes blocks, by operator, and frees them in the same order."""
    recording = Recording(micro_batch_size=micro_batch_size)
    recording.allocate(10, Component.PARAMETERS, module="", operator="weight")
    recording.step_starts.append(len(recording.event_blocks))
    recording.phase = Phase.FORWARD
    made = [
        recording.allocate(
            size_bytes, Component.PARAMETERS if name == "copy" else Component.TEMPORARIES, module="", operator=name
        )
        for name, size_bytes in blocks
    ]
    for block in made:
        recording.free(block)
    return recording


REFERENCE = recorded(2, [("sin", 200), ("sum", 4), ("cos", 200), ("copy", 10)])


@pytest.mark.parametrize(
    ("blocks", "sizes_bytes"),
    [
        pytest.param([("sin", 400), ("sum", 4), ("cos", 400), ("copy", 10)], [10, 400, 4, 400, 10], id="the same"),
        pytest.param([("sin", 400), ("cos", 400)], [10, 400, 8, 400, 10], id="fewer"),
        pytest.param([("sin", 400), ("max", 7), ("cos", 400)], [10, 400, 8, 400, 10], id="others"),
    ],
)
def test_blocks_take_the_sizes_of_those_alike_and_others_grow_unless_they_are_of_weights(
    blocks: list[tuple[str, int]], sizes_bytes: list[int]
) -> None:
    alike = in_structure_of(REFERENCE, recorded(4, blocks))
    assert alike is not None
    assert (alike.micro_batch_size, alike.block_bytes) == (4, sizes_bytes)
    assert alike.event_blocks == REFERENCE.event_blocks


def test_blocks_of_another_order_are_not_alike() -> None:
    assert in_structure_of(REFERENCE, recorded(4, [("cos", 400), ("sin", 400)])) is None
