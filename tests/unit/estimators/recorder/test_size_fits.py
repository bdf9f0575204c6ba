"""Generalising runs at a few micro-batch sizes to any size."""

from __future__ import annotations

import pytest

from memplan.estimators.recorder.recording import Recording
from memplan.estimators.recorder.size_fits import (
    envelope_timeline,
    fit_timeline,
    fits,
    nearly_fits,
    needs_third_run,
    proportional_timeline,
    same_structure,
)
from memplan.estimators.temporaries.timed_copies import TimedCopy
from memplan.results import Component
from tests.making import convolution


def recording(micro_batch_size: int, *sizes: int) -> Recording:
    made = Recording(micro_batch_size=micro_batch_size)
    for size in sizes:
        made.allocate(size, Component.TEMPORARIES, module="", operator="made")
    return made


def test_two_runs_give_a_constant_and_a_slope_for_every_block() -> None:
    timeline = fit_timeline([recording(2, 1000, 200), recording(3, 1000, 300)])
    assert timeline.block_bytes(64).tolist() == [1000, 6400]


def test_three_runs_give_a_square_as_well() -> None:
    runs = [recording(size, 7 + 5 * size + 3 * size * size) for size in (2, 3, 5)]
    assert needs_third_run(runs)
    assert fit_timeline(runs).block_bytes(100).tolist() == [7 + 500 + 30_000]


def test_sizes_that_were_rounded_need_no_third_run() -> None:
    assert not needs_third_run([recording(2, 14_746), recording(3, 22_120)])


@pytest.mark.parametrize(("size", "copied_bytes"), [(8, 512 * 8), (9, 0)])
def test_copies_for_timings_are_left_out_of_sizes_at_which_they_do_not_fit(size: int, copied_bytes: int) -> None:
    def timed(micro_batch_size: int) -> Recording:
        run = recording(micro_batch_size)
        run.free(run.allocate(512 * 8, Component.TEMPORARIES, module="", operator="made"))
        copy = TimedCopy(timing=0, place=0)
        size_bytes = 512 * micro_batch_size
        run.free(run.allocate(size_bytes, Component.WORKSPACES, module="", operator="timed", kernel_call=copy))
        return run

    timeline = fit_timeline([timed(2), timed(4)])
    assert timeline.block_bytes(size).tolist() == [512 * 8, copied_bytes]
    assert fits(timeline, timed(size))


def test_one_run_is_taken_as_it_is() -> None:
    assert fit_timeline([recording(2, 1000)]).block_bytes(9).tolist() == [1000]


def test_no_size_is_negative() -> None:
    assert fit_timeline([recording(2, 100), recording(3, 300)]).block_bytes(1).tolist() == [0]


@pytest.mark.parametrize(
    ("other", "same"), [(recording(3, 10, 30), True), (recording(3, 10), False)], ids=["equal", "fewer blocks"]
)
def test_runs_have_one_structure_if_they_make_the_same_blocks(other: Recording, same: bool) -> None:
    assert same_structure([recording(2, 10, 20), other]) is same


def test_the_order_of_blocks_freed_one_after_another_makes_no_other_structure() -> None:
    runs = [recording(size, 512, 512, 512) for size in (2, 3)]
    for run, freed in zip(runs, ([2, 0], [0, 2]), strict=True):
        for block in freed:
            run.free(block)
        run.order_frees()
    assert same_structure(runs)


def test_a_free_stays_on_its_side_of_an_allocation() -> None:
    runs = [recording(size, 512, 512) for size in (2, 3)]
    for run, (before, after) in zip(runs, ((0, 1), (1, 0)), strict=True):
        run.free(before)
        run.allocate(512, Component.TEMPORARIES, module="", operator="made")
        run.free(after)
        run.order_frees()
    assert runs[0].event_blocks == [0, 1, 0, 2, 1]
    assert not same_structure(runs)


def test_a_line_that_begins_above_zero_is_doubted_where_it_weighs() -> None:
    assert needs_third_run([recording(2, 1000), recording(3, 1200)])
    assert not needs_third_run([recording(2, 100_000, 1000), recording(3, 150_000, 1200)])


def test_what_a_rule_says_of_a_kernel_is_not_doubted() -> None:
    runs = [recording(2, 10_000), recording(3, 15_000)]
    for run, size in zip(runs, (1000, 1200), strict=True):
        run.allocate(size, Component.TEMPORARIES, module="", operator="inside aten.convolution")
    assert not needs_third_run(runs)


def with_workspace(micro_batch_size: int, workspace: int, samples: int) -> Recording:
    run = recording(micro_batch_size, 10_000 * micro_batch_size)
    call = convolution(samples)
    run.allocate(workspace, Component.WORKSPACES, module="", operator="inside aten.convolution", kernel_call=call)
    return run


def test_workspaces_may_grow_as_they_like_because_their_convolutions_are_known_at_every_size() -> None:
    runs = [with_workspace(size, workspace, size) for size, workspace in ((2, 0), (3, 9_000_000), (5, 0))]
    assert not needs_third_run(runs[:2])
    line = fit_timeline(runs[:2])
    assert fits(line, runs[2])
    assert not fits(line, with_workspace(5, 0, samples=6))


def test_a_line_explains_a_third_run_on_it_and_no_other() -> None:
    line = fit_timeline([recording(2, 1000), recording(3, 1200)])
    assert fits(line, recording(5, 1600))
    assert not fits(line, recording(5, 1800))


def test_a_small_block_that_follows_no_curve_is_no_more_than_rounding_among_all() -> None:
    parabola = fit_timeline(
        [recording(size, size * 1_000_000, noise) for size, noise in ((2, 300), (3, 100), (5, 900))]
    )
    run = recording(10, 10_000_000, 500)
    assert not fits(parabola, run)
    assert nearly_fits(parabola, run)
    assert not nearly_fits(parabola, recording(10, 15_000_000, 500))


def test_a_block_that_fails_the_test_of_a_fourth_run_takes_the_most_for_each_sample() -> None:
    runs = [recording(*sizes) for sizes in ((2, 4, 200), (3, 9, 900), (5, 25, 500), (10, 100, 700))]
    assert fit_timeline(runs).block_bytes(20).tolist() == [400, 20 * 300]


def test_where_samples_vary_blocks_follow_in_proportion_from_the_last_run() -> None:
    runs = [recording(2, 1000, 800), recording(3, 1000, 600), recording(8, 1000, 2400)]
    assert proportional_timeline(runs).block_bytes(8).tolist() == [1000, 2400]
    assert proportional_timeline(runs).block_bytes(16).tolist() == [1000, 4800]
    assert envelope_timeline(runs).block_bytes(8).tolist() == [1000, 3200]  # of two samples, each took 400
