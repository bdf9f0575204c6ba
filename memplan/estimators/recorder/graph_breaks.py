"""Functions that Dynamo turns into several graphs, because it breaks off where it meets what no graph can hold.

Dynamo runs the function once, on copies of its tensors. It is followed where all that its graphs are given, and all
that the function returns, was given to the function or made by a graph, so that code between graphs makes no tensors,
and where this code does not change what graphs keep for the backward pass, as checkpointing around a graph does.
"""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch._dynamo
from torch import fx

from memplan.errors import MemplanError
from memplan.training.tensors_apart import taken_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memplan.estimators.recorder.function_call import FunctionCall


class UnfollowedGraphsError(MemplanError):
    """A function's graphs depend on code between them, or Dynamo cannot run it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPart:
    """One of the graphs of a function.

    Args:
        graph: what it computes.
        inputs: what it is given: numbers of the function's tensors, and after these of what the graphs before return.
        examples: tensors like these.
        weight_count: how many of the function's tensors are weights.
    """

    graph: fx.GraphModule
    inputs: tuple[int, ...]
    examples: tuple[torch.Tensor, ...] = field(repr=False)
    weight_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenFunction:
    """A function as the graphs that Dynamo makes of it.

    Args:
        parts: the graphs, in the order in which they run.
        results: numbers of the tensors that it returns, as in ``GraphPart``.
        result_rest: all else of the result.
    """

    parts: tuple[GraphPart, ...]
    results: tuple[int, ...]
    result_rest: bytes

    def run(self, graphs: Sequence[Callable[..., Sequence[Any]]], given: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Return the tensors that the function returns.

        Args:
            graphs: runs each part.
            given: the function's tensors.
        """
        values: list[Any] = list(given)
        last = {number: at for at, part in enumerate(self.parts) for number in part.inputs}
        for at, (part, graph) in enumerate(zip(self.parts, graphs, strict=True)):
            values += graph(*(values[number] for number in part.inputs))
            for number in range(len(given), len(values)):
                if last.get(number, at) <= at and number not in self.results:
                    values[number] = None
        return tuple(values[number] for number in self.results)


class PartCall:
    """A call of one graph of a function, with the weights among its tensors first, as of ``FunctionCall``.

    Args:
        part: the graph, and tensors like those that it is given.
    """

    def __init__(self, part: GraphPart) -> None:
        self._graph = part.graph
        self._order = sorted(range(len(part.inputs)), key=lambda at: part.inputs[at] >= part.weight_count)
        self.weight_count = sum(number < part.weight_count for number in part.inputs)
        self.tensors = self.ordered(part.examples)

    def ordered(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the graph's inputs with the weights first."""
        return tuple(tensors[at] for at in self._order)

    def run_on(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Run the graph on tensors of which the weights come first; nodes describe what they make."""
        inputs = dict(zip(self._order, tensors, strict=True))
        return fx.Interpreter(self._graph).run(*(inputs[at] for at in range(len(inputs))))


def broken_by_dynamo(call: FunctionCall, tensors: Sequence[torch.Tensor]) -> BrokenFunction:
    """Return the graphs that Dynamo makes of a function.

    Args:
        call: the function's call.
        tensors: copies of the call's tensors, which graphs may change.

    Raises:
        UnfollowedGraphsError: the graphs depend on code between them, or Dynamo cannot run the function.
    """
    runs: list[tuple[fx.GraphModule, tuple[Any, ...], Any]] = []
    outside = _surroundings()

    def kept(graph: fx.GraphModule, _examples: Any) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            if _surroundings() != outside:
                raise UnfollowedGraphsError("code around a graph changes how it keeps tensors")
            results = graph(*inputs)
            runs.append((graph, inputs, results))
            return results

        return run

    compiled = torch._dynamo.optimize(kept, dynamic=False)  # noqa: SLF001 - what ``torch.compile`` calls
    try:
        with torch.compiler.set_stance("default"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            returned = call.run_on(tensors, compiled)
    except Exception as error:
        raise UnfollowedGraphsError(str(error)) from error
    finally:
        torch._dynamo.reset()  # noqa: SLF001 - forgets graphs and guards, which hold the tensors
    numbers = {id(each): number for number, each in enumerate(tensors)}
    made = itertools.count(len(tensors))
    parts: list[GraphPart] = []
    for graph, inputs, results in runs:
        places = _numbers_of(inputs, numbers)
        parts.append(GraphPart(graph=graph, inputs=places, examples=inputs, weight_count=call.weight_count))
        for each in results:
            numbers.setdefault(id(each), next(made))
    returned_tensors, rest = taken_apart(returned)
    return BrokenFunction(parts=tuple(parts), results=_numbers_of(returned_tensors, numbers), result_rest=rest)


def _numbers_of(values: Sequence[Any], numbers: dict[int, int]) -> tuple[int, ...]:
    try:
        return tuple(numbers[id(each)] for each in values)
    except KeyError:
        raise UnfollowedGraphsError("code between two graphs makes what the second is given") from None


def _surroundings() -> tuple[Any, ...]:
    """Return what decides, outside of a graph, which tensors are kept for the backward pass, and their types."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)  # noqa: SLF001 - public under no other name
    return (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), hooks)
