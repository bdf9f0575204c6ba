"""What Inductor's kernels write and hold, on graphs small enough to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.estimators.lowering.inductor_kernels import Launch

pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script_method:DeprecationWarning"
)  # of what Inductor imports


def _launches(function: Callable[..., object], *inputs: torch.Tensor) -> list[Launch]:
    from memplan.estimators.lowering.inductor_kernels import schedule  # noqa: PLC0415 - imports Inductor

    graph = make_fx(function, tracing_mode="fake")(*inputs)
    return [each for each in schedule(graph.graph) if each.computes]


def _written(launches: list[Launch]) -> list[str]:
    return [node.name for each in launches for node in each.writes]


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
    assert {over.name for each in launches for over in each.in_place.values()} == {"mm"}


def test_a_kernel_does_not_write_over_what_it_reads_in_another_order_or_what_is_read_later() -> None:
    assert not any(each.in_place for each in _launches(lambda x: (x @ x).t().sin().contiguous(), SQUARE))

    def read_later(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        product = x @ x
        return product.sin() @ x, product @ x

    assert not any(each.in_place for each in _launches(read_later, SQUARE))


def test_inputs_are_written_over_where_they_are_given_away() -> None:
    from memplan.estimators.lowering.inductor_kernels import schedule  # noqa: PLC0415 - imports Inductor

    graph = make_fx(torch.sin, tracing_mode="fake")(SQUARE).graph
    (given,) = graph.find_nodes(op="placeholder")
    assert schedule(graph)[0].in_place == {}
    assert set(schedule(graph, {given.name})[0].in_place.values()) == {given}


def test_values_are_released_after_the_last_launch_that_reads_them() -> None:
    launches = _launches(lambda x: (x @ x).sin() @ x, SQUARE)
    released = [{each.name for each in launch.releases} for launch in launches]
    assert "mm" in released[1]
    assert "sin" in released[2]
