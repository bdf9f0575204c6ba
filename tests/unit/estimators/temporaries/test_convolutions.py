"""Workspaces at any micro-batch, from sizes at a few."""

from __future__ import annotations

import numpy as np
import pytest

from memplan.estimators.temporaries.convolutions import GrowingConvolution, SizedWorkspaces, Workspaces
from tests.convolution_calls import call
from tests.making import convolution


def growing(channels: int = 4, per_item: int = 1) -> GrowingConvolution:
    return GrowingConvolution(convolution=convolution(0, channels), samples_at_zero=0, samples_per_item=per_item)


def sized(*bytes_at_sizes: float) -> SizedWorkspaces:
    """One block, 7, and its bytes at micro-batches 2 and 4."""
    return SizedWorkspaces(
        blocks=np.array([7], dtype=np.int32),
        numbers=np.array([0]),
        sizes=(2, 4),
        bytes_at_sizes=np.array([bytes_at_sizes]),
    )


def test_a_call_grows_with_the_micro_batch() -> None:
    assert growing(per_item=3).at(2) == convolution(6)


@pytest.mark.parametrize(("size", "expected"), [(2, 100), (3, 130), (4, 160), (8, 320)])
def test_sizes_between_two_lie_on_a_line_and_those_beyond_grow_in_proportion(size: int, expected: int) -> None:
    assert sized(100, 160).block_bytes(size).tolist() == [expected]


def test_blocks_of_one_call_share_its_size() -> None:
    workspaces = Workspaces(
        blocks=np.array([2, 5, 9], dtype=np.int32),
        numbers=np.array([0, 1, 0], dtype=np.int32),
        convolutions=(growing(2), growing(3)),
    )
    told = {growing(channels).at(size): 100 * channels + size for channels in (2, 3) for size in (1, 2)}
    found = workspaces.sized([1, 2], told)
    assert found.blocks.tolist() == [2, 5, 9]
    assert found.block_bytes(1).tolist() == [201, 301, 201]
    assert found.block_bytes(2).tolist() == [202, 302, 202]


def test_the_first_calls_are_the_first_block_of_each_convolution() -> None:
    workspaces = Workspaces(
        blocks=np.array([2, 5, 9], dtype=np.int32),
        numbers=np.array([1, 0, 1], dtype=np.int32),
        convolutions=(growing(2), growing(3)),
    )
    found = workspaces.first_calls()
    assert dict(zip(found.blocks.tolist(), found.numbers.tolist(), strict=True)) == {2: 1, 5: 0}


def test_without_convolutions_no_block_is_sized() -> None:
    assert Workspaces().sized([1, 2], {}).block_bytes(2).tolist() == []


def test_the_first_groups_of_a_convolution_are_one_as_well() -> None:
    in_sixteen = call((64, 2, 3, 3), input_shape=(5, 32, 8, 8), output_shape=(5, 64, 8, 8))
    assert in_sixteen.groups == 16
    assert in_sixteen.of_groups(4) == call((16, 2, 3, 3), input_shape=(5, 8, 8, 8), output_shape=(5, 16, 8, 8))
    assert in_sixteen.of_groups(16) == in_sixteen.of_groups(20) == in_sixteen
