"""Building models without writing their weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memplan.estimators.recorder.untouched_build import LARGE_ELEMENTS, untouched_fills

SIDE = 512
assert SIDE * SIDE >= LARGE_ELEMENTS


@pytest.mark.parametrize("fill", ["normal_", "zero_", "fill_", "uniform_"])
def test_fills_of_large_tensors_are_left_out_and_those_of_small_ones_are_not(fill: str) -> None:
    large, small = torch.full((SIDE, SIDE), 7.0), torch.full((4,), 7.0)
    arguments = (3.0,) if fill == "fill_" else ()
    with untouched_fills():
        getattr(large, fill)(*arguments)
        getattr(small, fill)(*arguments)
    assert bool((large == 7.0).all())
    assert not bool((small == 7.0).all())


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(SIDE, SIDE),
        lambda: torch.zeros(SIDE, SIDE, dtype=torch.bfloat16),
        lambda: torch.full((SIDE, SIDE), 3),
        lambda: torch.ones_like(torch.empty(SIDE, SIDE)),
    ],
    ids=["randn", "zeros", "full", "ones_like"],
)
def test_large_filled_tensors_keep_their_shape_and_type(make) -> None:
    expected = make()
    with untouched_fills():
        made = make()
    assert (made.shape, made.dtype) == (expected.shape, expected.dtype)


def test_a_large_layer_is_built_with_its_parameters() -> None:
    with untouched_fills():
        layer = nn.Linear(SIDE, SIDE)
    assert layer.weight.shape == (SIDE, SIDE)
    assert layer.weight.requires_grad
