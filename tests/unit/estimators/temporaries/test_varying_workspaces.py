"""Workspaces of convolutions on batches between a typical and a worst one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from memplan.estimators.temporaries.convolutions import Convolution, GrowingConvolution, Workspaces
from memplan.estimators.temporaries.varying_workspaces import VaryingConvolution, VaryingWorkspaces, varying_workspaces
from tests.making import convolution

if TYPE_CHECKING:
    from collections.abc import Sequence

CALL = convolution()


def growing(side: int, call: Convolution = CALL) -> GrowingConvolution:
    image = (0, 4, side, side)
    sized = replace(call, input_shape=image, output_shape=(0, 4, side - 2, side - 2))
    return GrowingConvolution(convolution=sized, samples_at_zero=0, samples_per_item=1)


def found_in(blocks: Sequence[int], side: int) -> Workspaces:
    numbers = np.zeros(len(blocks), dtype=np.int32)
    return Workspaces(blocks=np.array(blocks, dtype=np.int32), numbers=numbers, convolutions=(growing(side),))


@pytest.mark.parametrize(("share", "side"), [(1.0, 64), (0.25, 32), (0.5625, 48)])
def test_images_have_the_share_of_the_worst_ones_pixels(share: float, side: int) -> None:
    varying = VaryingConvolution(worst=growing(64), typical=growing(32), typical_share=1 / 4)
    call = varying.at(5, share)
    assert call.input_shape == (5, 4, side, side)
    assert call.output_shape == (5, 4, side - 2, side - 2)


def sized(shares: Sequence[float]) -> VaryingWorkspaces:
    """Of 64 numbers for each row of an image and each sample."""
    workspaces = varying_workspaces(found_in([1, 4], 64), found_in([1, 3, 4], 32), 0.25)
    told = {call: 64 * call.samples * call.input_shape[2] for calls in workspaces.calls(2, shares) for call in calls}
    return workspaces.sized(2, shares, told)


@pytest.mark.parametrize("shares", [[0.25, 1.0], [0.25, 0.5625, 1.0]])
def test_blocks_take_what_their_calls_do_on_their_own_batch(shares: list[float]) -> None:
    sizes = np.full(5, 7.0)
    of_batches = np.array([1.0, 1.0, 0.25, 0.25, 0.25])
    sized(shares).fill(sizes, np.arange(5, dtype=np.int32), of_batches, 2)
    assert sizes.tolist() == [7, 2 * 64 * 64, 7, 7, 2 * 32 * 64]


def test_between_two_batches_they_lie_on_the_line_through_both_and_more_samples_are_in_proportion() -> None:
    sizes = np.zeros(1)
    sized([0.25, 1.0]).fill(sizes, np.array([4], dtype=np.int32), np.array([0.625]), 6)
    assert sizes.tolist() == [6 * 48 * 64]


def test_batches_of_one_size_need_no_line() -> None:
    sizes = np.zeros(2)
    sized([1.0]).fill(sizes, np.array([4, 5], dtype=np.int32), np.ones(2), 2)
    assert sizes.tolist() == [2 * 64 * 64, 0]


def test_where_nothing_was_asked_sizes_stay() -> None:
    sizes = np.array([3.0])
    varying_workspaces(found_in([0], 64), found_in([0], 32), 0.25).fill(sizes, np.zeros(1, dtype=np.int32), sizes, 1)
    assert sizes.tolist() == [3]


def test_blocks_of_some_steps_are_those_of_another_batch() -> None:
    is_typical = np.array([False, True, False, True, True])
    mixed = found_in([0, 1, 4], 64).replaced_by(found_in([0, 1, 4], 32), is_typical)
    assert mixed.blocks.tolist() == [0, 1, 4]
    of_blocks = [mixed.calls_at(2)[number].input_shape[2] for number in mixed.numbers]
    assert of_blocks == [64, 32, 32]
