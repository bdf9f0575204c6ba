"""Steps that are added to a recording without being run."""

from __future__ import annotations

import numpy as np

from memplan.estimators.absent_card.card_streams import GraphStream, entered
from memplan.estimators.allocators.caching_allocator import replay
from memplan.estimators.recorder.recording import Recording
from memplan.estimators.recorder.repeated_steps import interleave_typical_steps, repeat_last_step
from memplan.estimators.recorder.size_fits import fit_timeline
from memplan.results import Component
from memplan.units import MIB

GRAPHS = GraphStream()
TYPICAL, WORST = 24 * MIB, 32 * MIB


def made(recording: Recording, size_bytes: int) -> int:
    return recording.allocate(size_bytes, Component.ACTIVATIONS, module="", operator="made")


def of_two_steps(activation_bytes: int) -> Recording:
    """A weight, state made in the first step, and in each a gradient that the next one frees."""
    recording = Recording(micro_batch_size=2)
    made(recording, MIB)
    gradient = None
    for is_first in (True, False):
        recording.step_starts.append(len(recording.event_blocks))
        if gradient is not None:
            recording.free(gradient)
        activation = made(recording, activation_bytes)
        gradient = made(recording, 2 * MIB)
        recording.free(activation)
        if is_first:
            made(recording, 4 * MIB)
    return recording


def told(recording: Recording) -> list[str]:
    """Every event as ``+2`` or ``-2``: sign and MiB."""
    sizes = [size // MIB for size in recording.block_bytes]
    pairs = zip(recording.event_blocks, recording.event_allocates, strict=True)
    return [f"{'+' if allocates else '-'}{sizes[block]}" for block, allocates in pairs]


def test_the_last_step_happens_again_with_blocks_of_its_own() -> None:
    recording = of_two_steps(WORST)
    assert told(recording) == ["+1", "+32", "+2", "-32", "+4", "-2", "+32", "+2", "-32"]
    repeat_last_step(recording)
    assert told(recording)[9:] == ["-2", "+32", "+2", "-32"]
    assert recording.event_blocks[5:] == [2, 4, 5, 4, 5, 6, 7, 6]
    assert recording.step_starts == [1, 5, 9]


def test_what_was_cached_is_returned_in_the_repeated_step_as_in_the_last() -> None:
    recording = of_two_steps(WORST)
    recording.cache_returns += [1, 5, 7]  # at the begin of both steps, and after the second's activation
    repeat_last_step(recording)
    assert sorted(recording.cache_returns) == [1, 5, 7, 9, 11]


def test_a_cuda_graph_that_was_recorded_in_the_last_step_is_replayed_in_the_repeated_one() -> None:
    recording = of_two_steps(WORST)
    recording.graph_returns.append(7)
    repeat_last_step(recording)
    assert fit_timeline([recording]).cache_returns.tolist() == [7]


def test_what_cuda_graphs_took_in_the_last_step_is_not_taken_again_where_they_are_replayed() -> None:
    recording = Recording(micro_batch_size=2)
    gradient = None
    for _ in range(2):
        recording.step_starts.append(len(recording.event_blocks))
        if gradient is not None:
            recording.free(gradient)
        with entered(GRAPHS):
            activation, gradient = made(recording, WORST), made(recording, 2 * MIB)
        loss = made(recording, MIB)
        recording.free(loss)
        recording.free(activation)
    for told_of_copy in (["-2", "+1", "-1"], ["+1", "-1"]):
        before = len(told(recording))
        repeat_last_step(recording)
        assert told(recording)[before:] == told_of_copy


def test_what_a_step_found_and_did_not_leave_is_not_freed_in_the_repeated_one() -> None:
    recording = of_two_steps(WORST)
    recording.free(recording.event_blocks[-2])  # the second gradient
    assert told(recording)[5:] == ["-2", "+32", "+2", "-32", "-2"]
    repeat_last_step(recording)
    assert told(recording)[10:] == ["+32", "+2", "-32", "-2"]


def test_a_step_that_leaves_more_than_it_found_is_not_repeated() -> None:
    recording = of_two_steps(WORST)
    made(recording, MIB)
    repeat_last_step(recording)
    assert recording.step_starts == [1, 5]


def test_room_is_kept_for_blocks_of_typical_and_of_worst_batches() -> None:
    worst, typical = of_two_steps(WORST), of_two_steps(TYPICAL)
    repeat_last_step(worst)
    repeat_last_step(worst)
    repeat_last_step(typical)
    repeat_last_step(typical)
    timeline = fit_timeline([worst])
    turns = interleave_typical_steps(timeline, worst, typical)
    sizes = turns.block_bytes(2)
    assert [size // MIB for size in sizes[sizes >= TYPICAL]] == [24, 32, 24, 32]
    assert sizes[0] == MIB  # what is there before the first step
    # a segment of 20 MiB for gradient and state, and one of 2 MiB for the weight
    assert reserved_mib(turns.event_blocks, turns.event_allocates, sizes) == 24 + 32 + 20 + 2
    assert reserved_mib(timeline.event_blocks, timeline.event_allocates, timeline.block_bytes(2)) == 32 + 20 + 2


def reserved_mib(blocks: np.ndarray, allocates: np.ndarray, sizes: np.ndarray) -> int:
    requests = np.where(allocates, sizes[blocks], 0)
    return replay(blocks.tolist(), requests.tolist()).peak_reserved_bytes // MIB
