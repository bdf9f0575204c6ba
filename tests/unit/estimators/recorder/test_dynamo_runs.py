"""Functions that Dynamo runs in graphs, and those that it makes one graph of."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import fx, nn

from memplan.estimators.recorder.dynamo_runs import DynamoRuns, GraphCall
from memplan.estimators.recorder.function_call import FunctionCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # of what compile imports
NUMBERS = torch.tensor([1.0, 2.0])


class Watched:
    """Runs graphs as they are, and notes what they are given."""

    def __init__(self) -> None:
        self.given: list[list[list[float]]] = []
        self.is_reading = False
        self.dynamo = DynamoRuns(self.compiled, self.reading)

    def compiled(self, graph: fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        assert not self.is_reading

        def run(*inputs: torch.Tensor) -> Any:
            self.given.append([each.tolist() for each in inputs])
            return graph(*inputs)

        return run

    @contextmanager
    def reading(self) -> Iterator[None]:
        self.is_reading = True
        yield
        self.is_reading = False

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.dynamo.run(function, args, {})


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.dynamo.forget()


@torch.compiler.disable
def aside(numbers: torch.Tensor) -> torch.Tensor:
    return numbers + 1


def doubled(numbers: torch.Tensor) -> torch.Tensor:
    return 2 * numbers


def with_code_between(numbers: torch.Tensor) -> torch.Tensor:
    return 2 * aside(3 * numbers)


def turned_round(numbers: torch.Tensor) -> dict[str, Any]:
    products = 2 * numbers, 3 * numbers
    return {"last": products[1], "first": products[0], "how many": 2}


def orders(watched: Watched, function: Callable[..., Any]) -> tuple[int, ...] | None:
    call = FunctionCall(function, (NUMBERS,), {})
    return watched.dynamo.results_of_one_graph(call, call.tensors)


def test_code_between_graphs_runs_as_it_is(watched: Watched) -> None:
    assert watched.run(with_code_between, NUMBERS).tolist() == [8, 14]
    assert watched.given == [[[1, 2]], [[4, 7]]]


def test_code_is_read_once(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("read anew")

    watched.run(doubled, NUMBERS)
    monkeypatch.setattr(watched, "is_reading", property(never))
    assert watched.run(doubled, NUMBERS + 1).tolist() == [4, 6]
    assert watched.given == [[[1, 2]], [[2, 3]]]


def test_a_function_without_a_break_is_one_graph_which_a_trial_does_not_compile(watched: Watched) -> None:
    assert orders(watched, doubled) == (0,)
    assert watched.given == []


def test_in_which_order_a_graph_returns_results_is_told(watched: Watched) -> None:
    order = orders(watched, turned_round)
    assert order is not None
    assert sorted(order) == [0, 1]
    returned: list[Any] = []
    DynamoRuns(lambda graph, _: lambda *inputs: returned.extend(graph(*inputs)) or returned, watched.reading).run(
        turned_round, (NUMBERS,), {}
    )
    last_and_first = [[3, 6], [2, 4]]
    assert [each.tolist() for each in returned] == [last_and_first[number] for number in order]


def test_a_function_with_code_between_graphs_is_not_one_graph(watched: Watched) -> None:
    assert orders(watched, with_code_between) is None
    assert watched.run(with_code_between, NUMBERS).tolist() == [8, 14]


def test_a_function_whose_results_code_after_the_graph_makes_is_not_one_graph(watched: Watched) -> None:
    def continued(numbers: torch.Tensor) -> torch.Tensor:
        return aside(2 * numbers)

    assert orders(watched, continued) is None


def test_a_graph_within_what_changes_what_it_keeps_is_not_the_function(watched: Watched) -> None:
    def interrupted(numbers: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return doubled(numbers)

    @torch.compiler.disable(recursive=False)
    def without_gradients(numbers: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return interrupted(numbers)

    assert orders(watched, interrupted) == (0,)
    assert orders(watched, without_gradients) is None


def test_a_function_that_fails_is_not_one_graph(watched: Watched) -> None:
    def failing(numbers: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        raise ValueError(f"{numbers}")

    assert orders(watched, failing) is None


def test_what_dynamo_cannot_read_runs_as_it_is(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("of Dynamo's own")

    monkeypatch.setattr("torch._dynamo.symbolic_convert.InstructionTranslator.__init__", fails)
    assert watched.run(doubled, NUMBERS).tolist() == [2, 4]
    assert watched.given == []


def graph_call(layer: nn.Linear, path: str = "") -> GraphCall:
    graph = fx.Graph()
    numbers, weight = graph.placeholder("numbers"), graph.placeholder("weight")
    product = graph.call_function(torch.mm, (numbers, weight))
    product.meta["nn_module_stack"] = {path: (path, nn.Linear)}
    graph.output((product,))
    return GraphCall(fx.GraphModule({}, graph), (torch.ones(3, 2), layer.weight), {id(layer.weight)})


def test_weights_come_first_among_the_tensors_of_a_graph() -> None:
    layer = nn.Linear(2, 2)
    call = graph_call(layer)
    assert call.weight_count == 1
    assert call.tensors[0] is layer.weight
    (product,) = call.run_on(call.tensors)
    assert torch.equal(product, torch.ones(3, 2) @ layer.weight)


def test_graphs_of_layers_that_are_alike_are_the_same_but_not_those_of_others() -> None:
    layer, frozen = nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)
    assert graph_call(layer).key == graph_call(nn.Linear(2, 2)).key
    assert graph_call(layer).key != graph_call(frozen).key
    assert graph_call(layer).key != graph_call(layer, "inside").key
    with torch.no_grad():
        without_gradients = graph_call(layer).key
    assert without_gradients != graph_call(layer).key
