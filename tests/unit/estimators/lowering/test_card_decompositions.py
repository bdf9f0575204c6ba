"""How operators are taken apart for a card, where Inductor would have it otherwise on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from memplan.torch_releases import release_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script_method:DeprecationWarning"
)  # of what Inductor imports


def operators_of(function: Callable[..., Any], *inputs: torch.Tensor) -> list[str]:
    from torch._inductor.decomposition import select_decomp_table  # noqa: PLC0415 - imports Inductor

    from memplan.estimators.lowering.card_decompositions import as_on_a_card  # noqa: PLC0415 - likewise

    with as_on_a_card():
        graph = make_fx(function, decomposition_table=select_decomp_table(), tracing_mode="fake")(*inputs)
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
    is_product |= release_of(torch.__version__) < (2, 13)  # which takes none apart for a card
    assert any("mm" in each for each in operators) is is_product


@pytest.mark.parametrize("function", [lambda x: torch.bernoulli(x, 0.5), lambda x: x.clone().bernoulli_(0.5)])
def test_coins_are_random_numbers_that_are_compared(function: Callable[..., torch.Tensor]) -> None:
    operators = operators_of(function, torch.ones(4))
    assert not any("bernoulli" in each for each in operators)
    assert "aten.lt.Scalar" in operators


def test_statistics_of_half_types_stay_in_single_precision() -> None:
    from memplan.estimators.lowering.card_decompositions import as_on_a_card  # noqa: PLC0415 - imports Inductor

    images = torch.ones(2, 3, 4, 4, dtype=torch.bfloat16)
    with as_on_a_card():
        _normalised, mean, *_rest = torch._decomp.decompositions.native_batch_norm(
            images, None, None, torch.zeros(3), torch.ones(3), True, 0.1, 1e-5
        )
    assert mean.dtype is torch.float32


def test_the_gradient_of_a_convolutions_bias_is_a_sum() -> None:
    def gradients(output: torch.Tensor, images: torch.Tensor, weight: torch.Tensor) -> Any:
        places, mask = [0, 0], [True, True, True]
        return torch.ops.aten.convolution_backward(
            output, images, weight, [5], [1, 1], places, [1, 1], False, places, 1, mask
        )

    shapes = (2, 5, 4, 4), (2, 3, 4, 4), (5, 3, 1, 1)
    assert "aten.sum.dim_IntList" in operators_of(gradients, *map(torch.ones, shapes))


def test_decompositions_find_out_where_tensors_lie_where_they_are_as_written() -> None:
    from memplan.estimators.lowering.card_decompositions import as_on_a_card, as_written  # noqa: PLC0415 - likewise

    log_sigmoid = torch._decomp.decompositions.log_sigmoid_forward
    lengths = []
    for taken in (as_on_a_card, as_written):
        with as_on_a_card(), taken():
            lengths.append(log_sigmoid(torch.ones(4))[1].numel())
    lengths.append(log_sigmoid(torch.ones(4))[1].numel())
    assert lengths == [0, 4, 4]  # a card keeps nothing
