"""Which blocks of a few runs are workspaces that cuDNN can be asked about for any micro-batch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.estimators.recorder.kernel_call_blocks import (
    growing_ruled_blocks,
    growing_workspaces,
    proportional_workspaces,
)
from memplan.estimators.recorder.recording import Recording
from memplan.estimators.temporaries.reductions import Reduction
from memplan.estimators.temporaries.ruled_blocks import RuledBlock, ruled_blocks
from memplan.results import Component
from tests.making import convolution

if TYPE_CHECKING:
    from memplan.estimators.temporaries.convolutions import Convolution

CALL = convolution()


REDUCTION = Reduction(
    item_bytes=4, accumulator_bytes=4, outputs_per_thread=4, multiprocessors=1, threads_per_multiprocessor=2048
)


def bias_gradient(rows: int, columns: int = 128) -> RuledBlock:
    return RuledBlock(rule=REDUCTION, place=0, lengths=(columns, rows))


def run(size: int, *calls: Convolution | RuledBlock | None) -> Recording:
    recording = Recording(micro_batch_size=size)
    for call in calls:
        recording.free(recording.allocate(8, Component.TEMPORARIES, module="", operator="a", kernel_call=call))
    return recording


def test_equal_calls_are_asked_about_once() -> None:
    found = growing_workspaces(
        [run(size, None, CALL.with_samples(3 * size), CALL.with_samples(3 * size)) for size in (2, 3)]
    )
    assert (found.blocks.tolist(), found.numbers.tolist()) == ([1, 2], [0, 0])
    assert found.calls_at(10) == (CALL.with_samples(30),)


def test_a_call_that_does_not_depend_on_the_micro_batch_stays_as_it_is() -> None:
    found = growing_workspaces([run(2, CALL), run(3, CALL)])
    assert found.calls_at(100) == (CALL,)


def test_samples_may_lie_where_channels_do() -> None:
    found = growing_workspaces([run(size, CALL.with_channels(2 * size)) for size in (2, 3)])
    assert found.calls_at(10) == (CALL.with_channels(20),)
    assert found.calls_at(10)[0].input_shape[1] == found.calls_at(10)[0].weight_shape[1] == 20


def test_where_more_than_the_batch_grows_a_rule_is_all_there_is() -> None:
    wider = replace(CALL.with_samples(2), input_shape=(2, 4, 9, 9))
    found = growing_workspaces([run(2, CALL), run(3, wider)])
    assert found.convolutions == ()
    assert found.has_any


def test_of_one_run_alone_more_samples_are_in_proportion() -> None:
    found = proportional_workspaces(run(4, None, CALL.with_samples(12), CALL.with_samples(6)))
    assert found.blocks.tolist() == [1, 2]
    assert set(found.calls_at(4)) == {CALL.with_samples(12), CALL.with_samples(6)}
    assert set(found.calls_at(8)) == {CALL.with_samples(24), CALL.with_samples(10)}  # of six, two belong to no sample


def test_three_runs_that_lie_on_no_line_are_left_to_rules() -> None:
    found = growing_workspaces([run(size, CALL.with_samples(size * size)) for size in (2, 3, 5)])
    assert found.convolutions == ()
    assert found.has_any


def test_a_reduction_whose_rule_changes_with_the_batch_is_left_to_the_fit() -> None:
    two_at_once = replace(bias_gradient(192), rule=replace(REDUCTION, outputs_per_thread=2))
    assert not growing_ruled_blocks([run(2, bias_gradient(128)), run(3, two_at_once)]).blocks.size


def test_convolutions_that_lie_on_no_line_are_not_forgotten_beside_others() -> None:
    found = growing_workspaces([run(size, CALL.with_samples(size), CALL.with_samples(size**2)) for size in (2, 3, 5)])
    assert (found.blocks.tolist(), found.has_others) == ([0], True)
    assert not growing_workspaces([run(size, CALL.with_samples(size)) for size in (2, 3, 5)]).has_others


def test_a_step_without_convolutions_has_none() -> None:
    assert not growing_workspaces([run(2, None), run(3, None)]).has_any


def test_blocks_keep_their_calls_when_one_before_them_goes() -> None:
    recording = run(2, None, None, CALL)
    recording.replace_block(1, 0)
    assert recording.kernel_calls == [None, CALL]
    recording.duplicate_block(1)
    assert recording.kernel_calls == [None, CALL, CALL]


def test_a_reduction_grows_with_what_it_reduces_and_with_what_it_makes() -> None:
    found = growing_ruled_blocks([run(size, None, CALL, bias_gradient(64 * size, 4 * size)) for size in (2, 3, 8)])
    assert found.blocks.tolist() == [2]
    assert found.different[0].at(10) == bias_gradient(640, 40)


def test_a_reduction_that_grows_otherwise_is_left_to_the_fit() -> None:
    assert not growing_ruled_blocks([run(size, bias_gradient(size**2)) for size in (2, 3, 5)]).blocks.size


def test_reductions_and_convolutions_are_told_apart() -> None:
    recordings = [run(size, bias_gradient(size), CALL) for size in (2, 3)]
    workspaces, ruled = growing_workspaces(recordings), growing_ruled_blocks(recordings)
    assert (workspaces.blocks.tolist(), ruled.blocks.tolist()) == ([1], [0])


def above_eight(samples: int, item_bytes: int) -> tuple[int, ...]:
    return (samples * item_bytes if samples > 8 else 0, item_bytes)


def test_a_rule_with_a_threshold_is_followed_beyond_it() -> None:
    recordings = [run(size, None, bias_gradient(64 * size), *ruled_blocks(above_eight, size + 1, 4)) for size in (2, 3)]
    found = growing_ruled_blocks(recordings)
    assert found.blocks.tolist() == [1, 2, 3]
    assert found.block_bytes(7)[1:].tolist() == [0, 4]
    assert found.block_bytes(8)[1:].tolist() == [36, 4]


def test_a_rule_whose_lengths_lie_on_no_line_is_left_out() -> None:
    assert not growing_ruled_blocks(
        [run(size, *ruled_blocks(above_eight, size**2, 4)) for size in (2, 3, 5)]
    ).blocks.size
