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


def _buffers_of_places(launches: list[Launch]) -> dict[str, str]:
    return {node.name: place.buffer.name for each in launches for node, place in each.places.items()}


@pytest.mark.parametrize(("window", "is_written"), [(2, False), (3, True)])  # of 4 and 9 elements
def test_a_pool_of_many_elements_is_computed_once_for_two_kernels(window: int, is_written: bool) -> None:
    def pooled(x: torch.Tensor) -> torch.Tensor:
        found = torch.nn.functional.avg_pool2d(x, window, stride=1).view(4, 4)
        return found + found.sin() @ found.cos()

    launches = _launches(pooled, torch.ones(1, 1, window + 3, window + 3))
    assert ("avg_pool2d" in _written(launches)) is is_written


@pytest.mark.parametrize(("window", "stride", "is_written"), [(2, 2, False), (3, 1, True)])
def test_so_is_its_gradient_where_windows_overlap(window: int, stride: int, is_written: bool) -> None:
    def spread(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        sizes = [window] * 2, [stride] * 2, [0, 0]
        found = torch.ops.aten.avg_pool2d_backward(gradient, x, *sizes, False, True, None).view(4, 4)
        return found + found.sin() @ x.view(4, 4)

    launches = _launches(spread, torch.ones(1, 1, 2, 2), torch.ones(1, 1, 4, 4))
    assert ("avg_pool2d_backward" in _written(launches)) is is_written


def _of_release(monkeypatch: pytest.MonkeyPatch, release: tuple[int, int]) -> None:
    from memplan.estimators.lowering import inductor_concatenation  # noqa: PLC0415 - imports Inductor

    monkeypatch.setattr(inductor_concatenation, "TORCH_RELEASE", release)


def _skipped(x: torch.Tensor) -> torch.Tensor:
    wave = x.sin()
    return torch.cat([wave, (wave.cos() @ x).cos()]) @ x


def test_what_is_read_besides_is_written_into_the_concatenation_and_has_no_buffer_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _of_release(monkeypatch, (2, 12))
    launches = _launches(_skipped, SQUARE)
    assert _buffers_of_places(launches) == {"sin": "cat", "cos_1": "cat"}
    assert _written(launches) == ["cos"]  # the concatenation's buffer is there from the first place on


def test_before_torch_2_12_it_is_computed_again_in_the_concatenation(monkeypatch: pytest.MonkeyPatch) -> None:
    _of_release(monkeypatch, (2, 11))
    launches = _launches(_skipped, SQUARE)
    assert not _buffers_of_places(launches)
    assert _written(launches) == ["cos", "cat"]


def test_a_part_that_the_caller_gets_has_a_buffer_and_is_copied_to_its_place() -> None:
    def returned(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wave = x.sin()
        return wave, torch.cat([wave, (wave.exp() + wave.cos()) @ x])

    launches = _launches(returned, SQUARE)
    assert _buffers_of_places(launches) == {"clone_default": "cat", "clone_default_1": "cat"}
    assert "sin" in _written(launches)


def test_parts_of_one_reader_that_joins_them_have_no_buffer() -> None:
    launches = _launches(lambda x: torch.cat([x.sin(), x.cos()]).exp() @ x, SQUARE)
    assert not _buffers_of_places(launches)
    assert _written(launches) == ["exp"]


def test_a_part_that_lies_elsewhere_is_copied_to_its_place() -> None:
    def of_product(x: torch.Tensor) -> torch.Tensor:
        product = x @ x
        return torch.cat([product, product.sin()]) @ x

    launches = _launches(of_product, SQUARE)
    assert _buffers_of_places(launches) == {"clone_default": "cat", "sin": "cat"}


def test_a_part_of_another_type_is_converted_at_its_place() -> None:
    def of_two_types(x: torch.Tensor, half: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        product = half @ half
        return torch.cat([product, x.sin()]) @ x, product @ half

    launches = _launches(of_two_types, SQUARE, SQUARE.half())
    assert _buffers_of_places(launches) == {"convert_element_type_default": "cat", "sin": "cat"}


def test_a_value_that_a_kernel_of_other_loops_reads_is_written() -> None:
    def of_groups(x: torch.Tensor) -> torch.Tensor:
        totals = x.exp().sum(-1)  # 4 results of 4
        return x.exp() / (totals.view(2, 2).sum(-1).repeat_interleave(2) + 1)

    launches = _launches(of_groups, SQUARE)
    assert _written(launches)[:2] == ["sum_1", "sum_2"]
