"""What Inductor's kernels write and hold, on graphs small enough to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.estimators.lowering.launches import Launch

pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script_method:DeprecationWarning"
)  # of what Inductor imports


def _launches(function: Callable[..., object], *inputs: torch.Tensor, sm_count: int | None = 108) -> list[Launch]:
    from memplan.estimators.lowering.inductor_kernels import schedule  # noqa: PLC0415 - imports Inductor

    graph = make_fx(function, tracing_mode="fake")(*inputs)
    return [each for each in schedule(graph.graph, sm_count) if each.computes]


def _written(launches: list[Launch]) -> list[str]:
    return [node.name for each in launches for node in each.writes]


def _taken_over(launches: list[Launch]) -> set[str]:
    return {over.name for each in launches for over in each.takes_over.values()}


SQUARE = torch.ones(4, 4)


def test_a_chain_of_elementwise_operators_is_one_kernel_with_one_result() -> None:
    launches = _launches(lambda x: (x.sin().cos() * 2).exp(), SQUARE)
    assert _written(launches) == ["exp"]
    assert launches[0].is_joined


def test_what_a_product_reads_is_written_and_what_follows_it_is_joined_again() -> None:
    launches = _launches(lambda x: (x.sin() @ x).cos().exp(), SQUARE)
    assert [each.is_joined for each in launches] == [True, False, True]
    assert _written(launches) == ["sin", "exp"]


def test_a_reduction_and_what_is_scaled_by_it_are_one_kernel() -> None:
    assert _written(_launches(lambda x: x / x.exp().sum(-1, keepdim=True), SQUARE)) == ["div"]


def test_a_cheap_value_of_two_kernels_is_computed_twice_and_a_reduction_is_written() -> None:
    def cheap(x: torch.Tensor) -> torch.Tensor:
        half = x * 0.5
        return half + (half.sin() @ x)

    def reduced(x: torch.Tensor) -> torch.Tensor:
        total = x.sum(-1, keepdim=True)
        return total + ((x * total) @ x)

    assert _written(_launches(cheap, SQUARE)) == ["sin", "add"]
    assert _written(_launches(reduced, SQUARE)) == ["sum_1", "mul", "add"]


def test_a_kernel_writes_over_a_product_that_it_alone_reads() -> None:
    launches = _launches(lambda x: (x @ x).sin(), SQUARE)
    assert _taken_over(launches) == {"mm"}


def test_a_kernel_does_not_write_over_what_it_reads_in_another_order_or_what_is_read_later() -> None:
    assert not any(each.takes_over for each in _launches(lambda x: (x @ x).t().sin().contiguous(), SQUARE))

    def read_later(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        product = x @ x
        return product.sin() @ x, product @ x

    assert "mm" not in _taken_over(_launches(read_later, SQUARE))


def test_inputs_are_written_over_where_they_are_given_away() -> None:
    from memplan.estimators.lowering.inductor_kernels import schedule  # noqa: PLC0415 - imports Inductor

    graph = make_fx(torch.sin, tracing_mode="fake")(SQUARE).graph
    (given,) = graph.find_nodes(op="placeholder")
    assert schedule(graph, 108)[0].takes_over == {}
    assert set(schedule(graph, 108, {given.name})[0].takes_over.values()) == {given}


def test_values_are_released_after_the_last_launch_that_reads_them() -> None:
    launches = _launches(lambda x: (x @ x).sin() @ x, SQUARE)
    released = [{each.name for each in launch.releases} for launch in launches]
    assert "mm" in released[1]
    assert "sin" in released[2]


def test_what_scatters_write_is_read_by_another_kernel_and_not_written_over() -> None:
    def scattered(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return x.scatter_add(0, places, x).sin()

    launches = _launches(scattered, SQUARE, torch.zeros(4, 4, dtype=torch.int64))
    assert _written(launches) == ["scatter_add", "sin"]
    assert len(launches) == 2
    assert not any(each.takes_over for each in launches)


@pytest.mark.parametrize(
    ("rows", "columns", "sm_count", "kernels"),
    [
        pytest.param(129, 64, 1, 1, id="as many results as fill the card"),
        pytest.param(129, 63, 1, 2, id="few results of what does not lie side by side"),
        pytest.param(128, 63, 1, 1, id="few elements each"),
        pytest.param(129, 63, None, 1, id="a card of which only the memory is known"),
    ],
)
def test_a_reduction_to_few_results_is_split_and_ends_a_kernel(
    rows: int, columns: int, sm_count: int | None, kernels: int
) -> None:
    def normalized(x: torch.Tensor) -> torch.Tensor:
        return x / x.sum(0, keepdim=True)

    assert len(_launches(normalized, torch.ones(rows, columns), sm_count=sm_count)) == kernels


def test_a_buffer_takes_the_place_of_the_last_of_its_size_that_is_not_needed_any_more() -> None:
    def products(x: torch.Tensor) -> torch.Tensor:
        first = x @ x
        second = first @ x
        return (second @ x) @ x

    launches = _launches(products, SQUARE)
    assert [{node.name: over.name for node, over in each.takes_over.items()} for each in launches] == [
        {},
        {},
        {"mm_2": "mm"},
        {"mm_3": "mm_1"},
    ]
    assert [{each.name for each in launch.releases if each.name.startswith("mm")} for launch in launches] == [
        set(),
        set(),
        {"mm"},
        {"mm_1", "mm_2"},
    ]
