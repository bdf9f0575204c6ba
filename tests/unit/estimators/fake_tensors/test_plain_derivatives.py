"""Derivatives that autograd computes otherwise of fake tensors: who they answer, and that they are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from memplan.estimators.fake_tensors import plain_derivatives
from memplan.estimators.fake_tensors.plain_derivatives import install_plain_derivatives

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[torch.Tensor], torch.Tensor]

CALLS: dict[str, Call] = {
    "product": lambda x: x.prod(),
    "product along a dimension": lambda x: x.prod(1),
    "product along a dimension that is kept": lambda x: x.prod(0, keepdim=True),
    "running product": lambda x: x.cumprod(-1),
    "product of rectified values": lambda x: (x - 0.4).relu().prod(-1),
    "entropy": lambda x: functional.binary_cross_entropy_with_logits(x, torch.full_like(x, 0.25)),
    "weighted sum of entropies": lambda x: functional.binary_cross_entropy_with_logits(
        x, torch.full_like(x, 0.25), torch.full_like(x, 2), pos_weight=torch.full_like(x[0], 3), reduction="sum"
    ),
}
PARTS = ("_Product", "_RunningProduct", "_EntropyOfLogits")

install_plain_derivatives()


def slope_of(call: Call, values: torch.Tensor) -> torch.Tensor:
    values = values.clone().requires_grad_()
    return torch.autograd.grad(call(values).sum(), values)[0]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_slopes_are_those_of_autograd(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.rand(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1
    expected = slope_of(call, values)
    monkeypatch.setattr(plain_derivatives, "FakeTensor", torch.Tensor)  # answer plain tensors, too, which have values
    torch.testing.assert_close(slope_of(call, values), expected)
    assert torch.autograd.gradcheck(call, values.clone().requires_grad_())
    assert torch.autograd.gradgradcheck(call, values.clone().requires_grad_())


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_fake_tensors_are_answered_and_plain_ones_and_transforms_are_not(call: Call) -> None:
    real = torch.rand(4, 6, requires_grad=True)
    assert not _is_answered(call(real))
    assert torch.func.grad(lambda x: call(x).sum())(real).shape == (4, 6)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(real)
        assert _is_answered(call(fake))
        assert not call(fake.detach()).requires_grad
        assert torch.func.grad(lambda x: call(x).sum())(fake).shape == (4, 6)


def _is_answered(result: torch.Tensor) -> bool:
    node = result.grad_fn
    return node is not None and node.name().removesuffix("Backward") in PARTS


def test_a_target_that_is_learnt_is_left_to_autograd() -> None:
    with FakeTensorMode():
        logits, target = torch.rand(4, requires_grad=True), torch.rand(4, requires_grad=True)
        loss = functional.binary_cross_entropy_with_logits(logits, target)
    assert not _is_answered(loss)


@pytest.mark.parametrize("values", [torch.rand(2, 4, 6).transpose(0, 1), torch.rand(3, 2, 4, 6).transpose(1, 2)])
def test_a_bias_is_added_in_place_to_the_product_of_what_is_not_contiguous(values: torch.Tensor) -> None:
    weight, bias = torch.rand(8, 6, requires_grad=True), torch.rand(8, requires_grad=True)
    with FakeTensorMode() as mode:
        given = [mode.from_tensor(each) for each in (values, weight, bias)]
        made = functional.linear(*given)
        in_one = functional.linear(given[0].contiguous(), *given[1:])
    assert (made._version, in_one._version) == (1, 0)
    assert made.shape == functional.linear(values, weight, bias).shape


class _Made(TorchDispatchMode):
    """Keeps the types of the tensors that operators make."""

    def __init__(self) -> None:
        super().__init__()
        self.types: list[torch.dtype] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.types += [result.dtype] if isinstance(result, torch.Tensor) and not func.is_view else []
        return result


@pytest.mark.parametrize("count", [-1, 5])
def test_classes_are_scattered_as_those_of_plain_tensors(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    classes = torch.tensor([[0, 2], [4, 1]])
    expected = functional.one_hot(classes, count)
    monkeypatch.setattr(plain_derivatives, "FakeTensor", torch.Tensor)
    torch.testing.assert_close(functional.one_hot(classes, count), expected)


def test_classes_are_scattered_into_zeros_without_a_mask_unless_a_compiler_sees_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def made() -> list[torch.dtype]:
        with FakeTensorMode() as mode:
            classes = mode.from_tensor(torch.zeros(4, 6, dtype=torch.int64))
            with _Made() as seen:
                functional.one_hot(classes, 8)
        return seen.types

    assert made() == [torch.int64, torch.int64]  # zeros, and these again, with ones
    monkeypatch.setattr(torch.compiler, "_is_compiling_flag", True)
    assert torch.bool in made()


def test_what_are_no_classes_is_refused_as_before() -> None:
    with FakeTensorMode(), pytest.raises(RuntimeError, match="LongTensor"):
        functional.one_hot(torch.zeros(4), 8)
