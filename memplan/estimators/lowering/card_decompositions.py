"""How operators of a graph are taken apart where its tensors lie on a card, though it was captured on the CPU.

Some of Inductor's decompositions ask where tensors lie (``torch/_inductor/decomposition.py`` and
``torch/_decomp/decompositions_for_rng.py``, torch 2.13).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._inductor.decomposition import select_decomp_table

if TYPE_CHECKING:
    from collections.abc import Callable

_ATEN = torch.ops.aten


def card_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return Inductor's decompositions, with those for a card in the place of those for the CPU."""
    return {
        **select_decomp_table(),
        _ATEN.bernoulli_.float: _bernoulli_in_place,
        _ATEN.bernoulli.p: _bernoulli,
        _ATEN.mm.default: _product,
        _ATEN.addmm.default: _product_with_bias,
    }


def _bernoulli_in_place(values: torch.Tensor, p: float = 0.5, *, generator: torch.Generator | None = None) -> Any:
    return values.copy_(_bernoulli(values, p, generator=generator))


def _bernoulli(values: torch.Tensor, p: float = 0.5, *, generator: torch.Generator | None = None) -> Any:  # noqa: ARG001 - the operator's
    return torch.rand_like(values, dtype=torch.float32) < p


def _product(left: torch.Tensor, right: torch.Tensor) -> Any:
    return left * right if _is_outer(left, right) else NotImplemented


def _product_with_bias(
    bias: torch.Tensor, left: torch.Tensor, right: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> Any:
    return alpha * (left * right) + beta * bias if _is_outer(left, right) else NotImplemented


def _is_outer(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.shape[1] == 1 and left.shape[0] != 1 and right.shape[1] != 1
