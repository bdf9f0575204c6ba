"""Which products Inductor pads, as it did on an H100, and that it then does so in a graph."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script_method:DeprecationWarning"
)  # of what Inductor imports
WORDS, WIDTH, POSITIONS = 50_257, 768, 8_192  # of GPT-2, at 16 times 512 positions


def _products_of(left: tuple[int, int], right: tuple[int, int], dtype: torch.dtype) -> list[tuple[int, ...]]:
    """Return the sizes that a product's operands have in a graph after Inductor's passes."""
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes  # noqa: PLC0415 - imports Inductor
    from torch._inductor.virtualized import V  # noqa: PLC0415

    from memplan.estimators.lowering.padded_products import products_padded  # noqa: PLC0415

    with FakeTensorMode() as mode:
        operands = torch.empty(left, dtype=dtype), torch.empty(right, dtype=dtype)
    graph = make_fx(torch.mm)(*operands)
    with V.set_fake_mode(mode), products_padded({WORDS, WIDTH}):
        joint_graph_passes(graph)
    (product,) = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)
    return [tuple(each.meta["val"].shape) for each in product.args]


@pytest.mark.parametrize(
    ("left", "right", "padded_left", "padded_right"),
    [
        ((POSITIONS, WIDTH), (WIDTH, WORDS), (POSITIONS, WIDTH), (WIDTH, 50_264)),  # logits
        ((POSITIONS, WORDS), (WORDS, WIDTH), (POSITIONS, 50_264), (50_264, WIDTH)),  # the gradient that goes on
        ((WORDS, POSITIONS), (POSITIONS, WIDTH), (WORDS, POSITIONS), (POSITIONS, WIDTH)),  # the weights' gradient
    ],
)
def test_in_bfloat16_what_is_not_aligned_is_padded_unless_these_are_rows(
    left: tuple[int, int], right: tuple[int, int], padded_left: tuple[int, int], padded_right: tuple[int, int]
) -> None:
    assert _products_of(left, right, torch.bfloat16) == [padded_left, padded_right]


def test_in_single_precision_nothing_is_padded() -> None:
    assert _products_of((POSITIONS, WIDTH), (WIDTH, WORDS), torch.float32) == [(POSITIONS, WIDTH), (WIDTH, WORDS)]


def test_lengths_that_follow_the_micro_batch_are_not_heeded() -> None:
    odd = POSITIONS + 1
    assert _products_of((WIDTH, odd), (odd, WIDTH), torch.bfloat16) == [(WIDTH, odd), (odd, WIDTH)]


@pytest.mark.parametrize(("rows", "is_bound"), [(147, False), (149, True)])
def test_few_rows_are_read_and_written_longer_than_multiplied(rows: int, is_bound: bool) -> None:
    from memplan.estimators.lowering.padded_products import is_bound_by_arithmetic  # noqa: PLC0415 - imports Inductor

    assert is_bound_by_arithmetic(rows, 10**9, 10**9) is is_bound  # so many that only the rows count
