"""How operators are taken apart for a card, where Inductor would have it otherwise on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script_method:DeprecationWarning"
)  # of what Inductor imports


def operators_of(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> list[str]:
    from memplan.estimators.lowering.card_decompositions import card_decompositions  # noqa: PLC0415 - imports Inductor

    graph = make_fx(function, decomposition_table=card_decompositions(), tracing_mode="fake")(*inputs)
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize(
    ("function", "shapes", "is_product"),
    [
        pytest.param(torch.mm, ((8, 1), (1, 4)), False, id="of a column and a row"),
        pytest.param(torch.mm, ((8, 2), (2, 4)), True, id="of matrices"),
        pytest.param(torch.mm, ((1, 8), (8, 1)), True, id="of a row and a column"),
        pytest.param(
            lambda left, right: torch.addmm(torch.ones(4), left, right), ((8, 1), (1, 4)), False, id="with a bias"
        ),
    ],
)
def test_products_of_a_column_and_a_row_are_elementwise(
    function: Callable[..., torch.Tensor], shapes: tuple[tuple[int, int], ...], is_product: bool
) -> None:
    operators = operators_of(function, *map(torch.ones, shapes))
    assert any("mm" in each for each in operators) is is_product


@pytest.mark.parametrize("function", [lambda x: torch.bernoulli(x, 0.5), lambda x: x.clone().bernoulli_(0.5)])
def test_coins_are_random_numbers_that_are_compared(function: Callable[..., torch.Tensor]) -> None:
    operators = operators_of(function, torch.ones(4))
    assert not any("bernoulli" in each for each in operators)
    assert "aten.lt.Scalar" in operators
