"""Building models without writing their weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from memplan.training.skipped_initialisation import LARGE_ELEMENTS, initialisation_skipped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIDE = 512
assert SIDE * SIDE >= LARGE_ELEMENTS


@pytest.mark.parametrize("fill", ["normal_", "zero_", "fill_", "uniform_"])
def test_fills_of_large_tensors_are_left_out_and_those_of_small_ones_are_not(fill: str) -> None:
    large, small = torch.full((SIDE, SIDE), 7.0), torch.full((4,), 7.0)
    arguments = (3.0,) if fill == "fill_" else ()
    with initialisation_skipped():
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
    with initialisation_skipped():
        made = make()
    assert (made.shape, made.dtype) == (expected.shape, expected.dtype)


def test_a_large_layer_is_built_with_its_parameters() -> None:
    with initialisation_skipped():
        layer = nn.Linear(SIDE, SIDE)
    assert layer.weight.shape == (SIDE, SIDE)
    assert layer.weight.requires_grad


@pytest.fixture
def marked_empties() -> Iterator[None]:
    """Let tensors that nothing wrote hold no number, so that they can be told."""
    torch.use_deterministic_algorithms(mode=True)
    yield
    torch.use_deterministic_algorithms(mode=False)


@pytest.mark.usefixtures("marked_empties")
@pytest.mark.parametrize(
    "change",
    [lambda weight: weight.to(torch.bfloat16), torch.clone, lambda weight: weight.half()],
    ids=["to", "clone", "half"],
)
def test_conversions_and_copies_of_large_weights_are_left_out(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    weight, bias = torch.ones(SIDE, SIDE).t(), torch.ones(4)
    expected = change(weight)
    with initialisation_skipped():
        changed = change(weight)
        assert bool((change(bias) == 1).all())
    assert (changed.dtype, changed.shape, changed.stride()) == (expected.dtype, expected.shape, expected.stride())
    assert bool(changed.isnan().all())


def test_what_is_copied_into_a_large_weight_is_left_out() -> None:
    weight = torch.zeros(SIDE, SIDE)
    with initialisation_skipped():
        weight.copy_(torch.ones(1))
    assert not bool(weight.any())


def test_large_tables_of_whole_numbers_keep_their_values() -> None:
    table = torch.arange(SIDE * SIDE)
    with initialisation_skipped():
        converted, copied, filled = table.to(torch.int32), table.clone(), torch.empty_like(table).copy_(table)
        as_weight = (table > 0).to(torch.float32)
    assert all(torch.equal(each.long(), table) for each in (converted, copied, filled))
    assert torch.equal(as_weight, (table > 0).float())


@torch.library.custom_op("memplan_tests::halved", mutates_args=())
def halved(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    assert weight.numel() < LARGE_ELEMENTS, "computed"
    return weight[: len(weight) // 2].to(torch.uint8), torch.ones(len(weight))


@halved.register_fake
def _(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return weight.new_empty(len(weight) // 2, *weight.shape[1:], dtype=torch.uint8), weight.new_empty(len(weight))


def test_what_a_library_computes_of_large_weights_only_gets_its_shape_and_type() -> None:
    with initialisation_skipped():
        packed, scales = halved(torch.ones(SIDE, SIDE))
        small, _ = halved(torch.full((4,), 3.0))
    assert (packed.shape, packed.dtype, scales.shape) == ((SIDE // 2, SIDE), torch.uint8, (SIDE,))
    assert small.tolist() == [3, 3]


@torch.library.custom_op("memplan_tests::doubled", mutates_args=())
def doubled(weight: torch.Tensor) -> torch.Tensor:
    return weight * 2


def test_what_a_library_computes_is_computed_where_it_does_not_say_what_that_looks_like() -> None:
    with initialisation_skipped():
        assert doubled(torch.ones(SIDE, SIDE)).shape == (SIDE, SIDE)
