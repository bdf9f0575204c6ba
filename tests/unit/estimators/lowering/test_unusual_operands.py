"""Operands that rules seldom see: no samples, no channels, a single number, sparse matrices."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memplan.estimators.lowering.kernel_rules import KernelRules, cuda_kernels, host_kernels
from tests.making import sizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.estimators.lowering.temporary_bytes import TemporaryBytes

CALLS: dict[str, Callable[[], torch.Tensor]] = {
    "softmax of a number": lambda: torch._safe_softmax(torch.rand(()), 0),
    "softmax of nothing": lambda: torch._safe_softmax(torch.rand(0, 3), -1),
    "entropy of no logits": lambda: functional.binary_cross_entropy_with_logits(torch.rand(0, 3), torch.rand(0, 3)),
    "Fourier transform of a number": lambda: torch.fft.fftn(torch.rand(())),
    "product with a sparse matrix": lambda: torch.mm(torch.rand(6, 4).to_sparse().t(), torch.rand(6, 3)),
    "convolution of no samples": lambda: convolved((0, 4, 32, 32), (6, 4, 3, 3)),
    "convolution of no samples by wide windows": lambda: convolved((0, 4, 32, 32), (6, 4, 17, 17)),
    "convolution of no channels": lambda: convolved((2, 0, 8, 8), (6, 0, 3, 3)),
    "median of a number": lambda: torch.rand(()).median(),
    "sort of a number": lambda: torch.rand(()).sort()[0],
    "largest of no rows": lambda: torch.rand(0, 5).topk(2)[0],
    "nothing taken by indices": lambda: torch.rand(5, 4)[torch.zeros(0, dtype=torch.long)],
    "distances within nothing": lambda: functional.pdist(torch.rand(0, 3)),
    "sum of a number along its dimension": lambda: torch.rand(()).sum(-1),
    "sum of no columns": lambda: torch.empty(200_000, 0).sum(0),
    "sum of a sparse matrix": lambda: torch.eye(3).to_sparse_csr().sum(dim=[0], keepdim=True),
    "convolution that moves by one number for all dimensions": lambda: (
        torch.convolution(
            torch.rand(2, 3, 8, 8, requires_grad=True),
            torch.rand(4, 3, 3, 3, requires_grad=True),
            None,
            [1],
            [0],
            [1],
            False,
            [0],
            1,
        )
        .sum()
        .backward()
    ),
    "inverse of no rows": lambda: torch.linalg.inv(torch.rand(0, 0)),
}


class Rules(TorchDispatchMode):
    """Collects what a device's rules say of the operators that run."""

    def __init__(self, kernels: KernelRules) -> None:
        super().__init__()
        self._kernels = kernels
        self.found: list[TemporaryBytes] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.found.append(self._kernels.temporary_bytes(str(func.overloadpacket), args, result))
        return result


def convolved(image: tuple[int, ...], weight: tuple[int, ...]) -> torch.Tensor:
    made = functional.conv2d(torch.rand(image, requires_grad=True), torch.rand(weight, requires_grad=True))
    made.sum().backward()
    return made


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("kernels", [host_kernels(), cuda_kernels((8, 6), 28)], ids=["host", "card"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_no_rule_fails_or_takes_less_than_nothing(call: Callable[[], torch.Tensor], kernels: KernelRules) -> None:
    with Rules(kernels) as rules:
        call()
    assert rules.found
    assert all(size >= 0 for each in rules.found for size in every_size(each))


def every_size(found: TemporaryBytes) -> list[int]:
    values = (getattr(found, each.name) for each in fields(found))
    return tree_leaves([sizes(each) for each in values if isinstance(each, tuple)])
