"""Which micro-batches are run until the sizes of blocks follow from the runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from memplan.estimators.recorder.recording import Recording
from memplan.estimators.recorder.size_runs import SizeRunner, SizeRuns, samples_vary
from memplan.estimators.recorder.step_recording import RecordedRun
from memplan.results import Component

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST = {2: 40, 3: 90, 5: 60, 16: 100}  # the longest sample of each batch


def run_of(micro_batch_size: int, *sizes: int) -> RecordedRun:
    recording = Recording(micro_batch_size=micro_batch_size)
    for size in sizes:
        recording.allocate(size, Component.TEMPORARIES, module="", operator="made")
    return RecordedRun(recording=recording, optimizer_name="SGD", unknown_calls=(), notes=())


def runs(
    size_of: Callable[[int], int],
    *,
    recipe_size: int = 16,
    may_run: bool = True,
    blocks: Callable[[int], int] = lambda _: 1,
) -> SizeRuns:
    runner = SizeRunner(
        record=lambda size: run_of(size, *[size_of(size)] * blocks(size)),
        sizes=(2, 3, 5),
        recipe_size=recipe_size,
        may_run=lambda _run, _size: may_run,
    )
    return runner.runs_of_equal_samples()


def sizes_of(found: SizeRuns) -> list[int]:
    return [each.micro_batch_size for each in found.recordings]


@pytest.mark.parametrize(
    ("size_of", "sizes"),
    [(lambda b: 512 * b, [2, 3]), (lambda b: 512 + 512 * b, [2, 5]), (lambda b: 512 * b * b, [2, 3, 5])],
    ids=["proportional", "line", "square"],
)
def test_a_rule_is_found_from_as_few_runs_as_it_takes(size_of: Callable[[int], int], sizes: list[int]) -> None:
    found = runs(size_of)
    assert (sizes_of(found), found.samples_vary) == (sizes, False)


def test_sizes_that_follow_no_rule_are_run_at_the_size_that_is_asked_about() -> None:
    found = runs(lambda b: b * LONGEST[b])
    assert found.samples_vary
    assert (sizes_of(found)[-1], found.reference.block_bytes) == (16, [1600])


def test_a_size_that_is_among_the_small_ones_is_where_figures_are_taken_from() -> None:
    found = runs(lambda b: b * LONGEST.get(b, 70), recipe_size=3)
    assert (found.samples_vary, found.reference.block_bytes) == (True, [270])


def test_where_running_many_samples_takes_too_long_the_largest_run_is_taken() -> None:
    found = runs(lambda b: b * LONGEST[b], may_run=False)
    assert (found.samples_vary, found.reference.micro_batch_size) == (True, 5)


def test_where_the_number_of_blocks_depends_on_the_samples_half_and_all_of_them_are_run() -> None:
    assert sizes_of(runs(lambda b: 512 * b, blocks=lambda b: b)) == [8, 16]
    assert sizes_of(runs(lambda b: 512 * b, blocks=lambda b: b, may_run=False)) == [2, 3, 5]


def test_where_the_number_of_blocks_depends_on_few_samples_they_are_run_beside_the_others() -> None:
    assert sizes_of(runs(lambda b: 512 * b, blocks=lambda b: b, recipe_size=4)) == [2, 3, 5, 4]
    assert sizes_of(runs(lambda b: 512 * b, blocks=lambda b: b, recipe_size=3)) == [2, 3, 5]


def more_above_three(micro_batch_size: int) -> int:
    return 2 if micro_batch_size > 3 else 1


def test_where_small_batches_make_fewer_blocks_a_square_is_found_around_the_size_that_is_asked_about() -> None:
    found = runs(lambda b: 512 * b * b, blocks=more_above_three)
    assert (sizes_of(found), found.samples_vary) == ([8, 16, 32], False)


def test_where_small_batches_make_fewer_blocks_sizes_without_a_rule_are_taken_as_they_are() -> None:
    found = runs(lambda b: b * (LONGEST | {8: 40, 24: 30, 32: 60})[b], blocks=more_above_three)
    assert (found.samples_vary, found.reference.block_bytes) == (True, [1600, 1600])
    found = runs(lambda b: 512 * b * b, blocks=lambda b: more_above_three(b) + (b > 16))
    assert (sizes_of(found), found.samples_vary) == ([8, 16], True)


def padded(lengths: dict[int, int]) -> dict[int, torch.Tensor]:
    return {size: torch.zeros(size, length) for size, length in lengths.items()}


def test_batches_whose_padded_length_follows_no_line_are_of_varying_samples() -> None:
    assert not samples_vary(padded({2: 7, 3: 7}))
    assert not samples_vary({size: torch.zeros(4 * size, 2) for size in (2, 3)})  # tokens of all samples in a row
    assert samples_vary(padded({2: 7, 3: 9}))
    assert not samples_vary(padded({2: 3, 3: 4, 5: 6}))  # one more than there are samples
    assert samples_vary(padded({2: 7, 3: 9, 5: 8}))


def test_one_tensor_a_sample_is_no_sign_of_varying_samples() -> None:
    assert not samples_vary({size: [torch.zeros(7)] * size for size in (2, 3)})
