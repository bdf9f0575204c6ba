"""Results of operators that are made again where they meet tensors of the same form again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from memplan.estimators.fake_tensors.fake_mode import TraceFakeMode

if TYPE_CHECKING:
    from collections.abc import Callable

aten = torch.ops.aten


class Counting(TraceFakeMode):
    """Counts what torch itself works out."""

    count = 0

    def dispatch(self, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        return super().dispatch(*args, **kwargs)


def run(fakes: TraceFakeMode, operator: Any, *args: Any, **kwargs: Any) -> Any:
    with fakes, torch.no_grad():
        return fakes.run(operator, args, kwargs)


def traits(value: Any) -> tuple[Any, ...]:
    keys = torch._C._dispatch_key_set(value)
    return (
        value.shape,
        value.stride(),
        value.storage_offset(),
        value.dtype,
        value.device,
        value.untyped_storage().nbytes(),
        keys,
    )


CALLS: dict[str, Callable[[TraceFakeMode], tuple[Any, ...]]] = {
    "product": lambda fakes: (aten.mm.default, real(fakes, 4, 8), real(fakes, 8, 2)),
    "channels last": lambda fakes: (aten.relu.default, real(fakes, 2, 3, 4, 4).to(memory_format=torch.channels_last)),
    "transposed": lambda fakes: (aten.t.default, real(fakes, 4, 8)),
    "slice": lambda fakes: (aten.slice.Tensor, real(fakes, 4, 8), 0, 1, 3),
    "broadcast": lambda fakes: (aten.expand.default, real(fakes, 4, 1), [4, 8]),
    "parts": lambda fakes: (aten.split.Tensor, real(fakes, 4, 8), 2),
    "pair": lambda fakes: (aten.topk.default, real(fakes, 4, 8), 2),
    "list": lambda fakes: (aten.cat.default, [real(fakes, 4, 8), real(fakes, 2, 8)]),
    "beside a number that torch knows": lambda fakes: (
        aten.mul.Tensor, real(fakes, 4, 8), fakes.from_number(torch.tensor(2.0)),
    ),
    "numbers among them": lambda fakes: (
        aten._scaled_dot_product_flash_attention.default, *[real(fakes, 1, 2, 64, 64) for _ in range(3)],
    ),
    "none among them": lambda fakes: (
        aten.convolution_backward.default, real(fakes, 2, 6, 8, 8), real(fakes, 2, 3, 8, 8), real(fakes, 6, 3, 1, 1),
        [6], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False],
    ),
}  # fmt: skip


def real(fakes: TraceFakeMode, *shape: int) -> FakeTensor:
    return fakes.from_tensor(torch.empty(shape))


@pytest.mark.parametrize("name", CALLS)
def test_a_result_made_again_is_the_one_that_torch_works_out(name: str) -> None:
    fakes = Counting()
    operator, *args = CALLS[name](fakes)
    first = run(fakes, operator, *args)
    worked_out = fakes.count
    again = run(fakes, operator, *args)
    assert fakes.count == worked_out > 0
    assert type(again) is type(first)
    pairs = zip([first], [again], strict=True) if isinstance(first, FakeTensor) else zip(first, again, strict=True)
    for expected, made in pairs:
        if isinstance(expected, FakeTensor):
            assert traits(made) == traits(expected)
            assert made is not expected
        else:
            assert made == expected


def test_a_view_shares_the_memory_of_what_it_is_taken_from() -> None:
    fakes = Counting()
    first, second = real(fakes, 4, 8), real(fakes, 4, 8)
    run(fakes, aten.t.default, first)
    view = run(fakes, aten.t.default, second)
    assert view.untyped_storage() is second.untyped_storage()
    fresh = run(fakes, aten.relu.default, second)
    assert fresh.untyped_storage() is not second.untyped_storage()


def test_other_forms_numbers_and_types_of_numbers_are_told_apart() -> None:
    fakes = Counting()
    whole = fakes.from_tensor(torch.ones(4, dtype=torch.long))
    results = [run(fakes, aten.mul.Scalar, whole, factor) for factor in (True, 1, 1.0)]
    assert [each.dtype for each in results] == [torch.long, torch.long, torch.float32]
    assert run(fakes, aten.select.int, real(fakes, 4, 8), 0, 1).storage_offset() == 8
    assert run(fakes, aten.select.int, real(fakes, 4, 8), 0, 2).storage_offset() == 16
    assert run(fakes, aten.relu.default, real(fakes, 8, 4).t()).stride() == (1, 4)
    assert run(fakes, aten.relu.default, real(fakes, 4, 8)).stride() == (8, 1)


def test_the_type_that_numbers_have_by_default_counts() -> None:
    fakes = Counting()
    whole = fakes.from_tensor(torch.ones(4, dtype=torch.long))
    assert run(fakes, aten.div.Tensor, whole, whole).dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert run(fakes, aten.div.Tensor, whole, whole).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_is_written_to_is_left_to_torch() -> None:
    fakes = Counting()
    tensor = real(fakes, 4)
    assert run(fakes, aten.add_.Tensor, tensor, real(fakes, 4)) is tensor
    count = fakes.count
    assert run(fakes, aten.add_.Tensor, tensor, real(fakes, 4)) is tensor
    assert fakes.count > count


def test_tensors_that_only_inference_makes_are_left_to_torch() -> None:
    fakes = TraceFakeMode()
    tensor = real(fakes, 4, 8)
    outside = [run(fakes, operator, tensor) for operator in (aten.t.default, aten.relu.default)]
    with torch.inference_mode():
        inside = [run(fakes, operator, tensor) for operator in (aten.t.default, aten.relu.default)]
    assert [each.is_inference() for each in outside] == [False, False]
    assert [each.is_inference() for each in inside] == [False, True]  # views are what they are taken from
    assert [each.is_inference() for each in outside] == [False, False]


def test_numbers_that_torch_knows_are_left_to_it() -> None:
    fakes = Counting()
    for number in (2.0, 3.0):
        sum_of_both = run(fakes, aten.add.Tensor, *[fakes.from_number(torch.tensor(number)) for _ in range(2)])
        assert sum_of_both.item() == 2 * number


def test_runs_of_one_step_share_what_they_remember() -> None:
    first = Counting()
    run(first, aten.relu.default, real(first, 4, 8))
    second = Counting(first._results)
    made = run(second, aten.relu.default, real(second, 4, 8))
    assert made.fake_mode is second
    assert second.count == 0


def test_a_fake_parameter_is_one_and_has_a_storage_of_its_own() -> None:
    fakes = TraceFakeMode()
    shared = torch.empty(2, 512, 512)
    frozen, trained = nn.Parameter(shared[0], requires_grad=False), nn.Parameter(shared[1])
    made = [fakes.from_parameter(each) for each in (frozen, trained)]
    assert all(isinstance(each, nn.Parameter) and isinstance(each, FakeTensor) for each in made)
    assert [each.requires_grad for each in made] == [False, True]
    assert [each.untyped_storage().nbytes() for each in made] == [1 << 20, 1 << 20]
