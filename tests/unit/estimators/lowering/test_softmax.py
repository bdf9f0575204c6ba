"""Which conversions softmax makes on a card."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from memplan.estimators.lowering.softmax import softmaxes


@pytest.mark.parametrize("name", ["softmax.int", "log_softmax.int"])
@pytest.mark.parametrize(("half", "converts"), [(torch.float16, False), (torch.bfloat16, True)])
def test_float16_alone_is_read_without_a_copy_in_single_precision(name: str, half: torch.dtype, converts: bool) -> None:
    with FakeTensorMode():
        scores = torch.zeros(4, 8, dtype=half, requires_grad=True)
        made = softmaxes()[name](scores, -1, torch.float32)
        (gradient,) = torch.autograd.grad(made.sum(), scores)
    assert made.grad_fn is not None
    assert made.dtype is torch.float32
    assert gradient.dtype is half
    assert ("ToCopy" in made.grad_fn.next_functions[0][0].name()) is converts


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float64])
def test_values_are_those_of_softmax(dtype: torch.dtype | None) -> None:
    scores = torch.rand(4, 8).half()
    torch.testing.assert_close(softmaxes()["softmax.int"](scores, 1, dtype), scores.softmax(1, dtype))
