"""Buckets of data-parallel training, by PyTorch's sizes: 1 MiB for the first, then 25 MiB."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.training.gradient_buckets import bucket_sizes
from memplan.units import MIB


@pytest.mark.parametrize(
    ("gradients", "buckets"),
    [
        ([], []),
        ([MIB], [MIB]),
        ([30 * MIB, MIB], [MIB, 30 * MIB]),
        ([10 * MIB, 10 * MIB, 10 * MIB, MIB], [MIB, 30 * MIB]),
        ([7, 20 * MIB, 10 * MIB, MIB], [MIB, 30 * MIB, 7]),
    ],
)
def test_buckets_fill_from_the_last_parameter_on(gradients: list[int], buckets: list[int]) -> None:
    assert bucket_sizes(iter(gradients)) == buckets


@given(st.lists(st.integers(1, 40 * MIB)))
def test_buckets_hold_every_gradient_once(gradients: list[int]) -> None:
    assert sum(bucket_sizes(gradients)) == sum(gradients)
