"""Which values operators fill their results with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from memplan.estimators.fake_tensors.fake_mode import TraceFakeMode
from memplan.estimators.fake_tensors.filled_values import filled_value

if TYPE_CHECKING:
    from torch._ops import OpOverload

ATEN = torch.ops.aten


@pytest.mark.parametrize(
    ("operator", "arguments", "expected"),
    [
        (ATEN.zeros_like.default, (), [0, 0]),
        (ATEN.new_zeros.default, ([2],), [0, 0]),
        (ATEN.ones_like.default, (), [1, 1]),
        (ATEN.new_ones.default, ([2],), [1, 1]),
        (ATEN.full_like.default, (7,), [7, 7]),
        (ATEN.new_full.default, ([2], -1), [-1, -1]),
    ],
)
@pytest.mark.parametrize("kind", [torch.int64, torch.float16])
def test_what_a_tensor_is_filled_with_is_known_whatever_gives_its_form(
    operator: OpOverload, arguments: tuple[object, ...], expected: list[int], kind: torch.dtype
) -> None:
    with TraceFakeMode():
        form = torch.empty(2, dtype=kind)
        value = filled_value(operator, (form, *arguments), operator(form, *arguments))
    assert value is not None
    assert (value.tolist(), value.dtype) == (expected, kind)


def test_the_gradient_of_a_loss_is_not_known() -> None:
    with TraceFakeMode():
        loss, count = torch.empty(()), torch.empty((), dtype=torch.int64)
        assert filled_value(ATEN.ones_like.default, (loss,), torch.empty_like(loss)) is None
        assert filled_value(ATEN.ones_like.default, (count,), torch.empty_like(count)) is not None


def test_other_results_are_not_filled() -> None:
    with TraceFakeMode():
        form = torch.empty(2)
        assert filled_value(ATEN.empty_like.default, (form,), torch.empty_like(form)) is None
        filled_with_a_tensor = (form, [2], form[0])
        assert filled_value(ATEN.new_full.default, filled_with_a_tensor, form) is None


@pytest.mark.parametrize(("kind", "largest"), [(torch.int64, 1 << 20), (torch.float32, 1 << 18)])
def test_large_ones_are_not_kept_least_of_all_real_numbers(kind: torch.dtype, largest: int) -> None:
    with TraceFakeMode():
        small, large = (torch.empty(size, dtype=kind) for size in (largest, largest + 1))
        assert filled_value(ATEN.zeros_like.default, (small,), small) is not None
        assert filled_value(ATEN.zeros_like.default, (large,), large) is None
