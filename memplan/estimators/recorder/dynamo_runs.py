"""Functions run as Dynamo runs them: as graphs where it makes some, and around these as they are.

Dynamo reads the function's frames on the tensors of the trace. So code between graphs is traced like any other, hooks
that gather the weights of sharded layers among it, and a frame that Dynamo gives up on runs uncompiled, as it does in
a training.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch._dynamo
from torch import fx
from torch._dynamo import config
from torch._dynamo.eval_frame import _TorchDynamoContext
from torch._dynamo.types import ConvertFrameReturn

from memplan.errors import MemplanError
from memplan.estimators.recorder.capture_context import module_path_of
from memplan.estimators.recorder.function_call import kinds_of, modes_of_operators
from memplan.training.tensors_apart import taken_apart

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from memplan.estimators.recorder.function_call import FunctionCall

GraphRun = Callable[..., Sequence[Any]]
_OWN_FILES = str(Path(__file__).parents[2]) + os.sep  # those of the package
_MODES_GUARD = "TORCH_FUNCTION_STATE"  # code is read outside of the trace's own mode, and run within it


class _SeveralGraphsError(MemplanError):
    """A function that was to be one graph is not."""


class DynamoRuns:
    """Runs functions, and finds out which are one graph.

    Args:
        compiled: returns what runs a graph, and is given the tensors that the graph is first given.
        reading: a context in which Dynamo reads code.
    """

    def __init__(
        self,
        compiled: Callable[[fx.GraphModule, tuple[Any, ...]], GraphRun],
        reading: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._compiled = compiled
        self._reading = reading
        self._tried: _Trial | None = None
        self._made: dict[Any, Callable[..., Any]] = {}

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what a function returns."""
        with torch.compiler.set_stance("default"):
            return self._followed(function)(*args, **kwargs)

    def results_of_one_graph(self, call: FunctionCall, tensors: Sequence[torch.Tensor]) -> tuple[int, ...] | None:
        """Return in which order the one graph of a function returns its results; None of one that breaks.

        Args:
            call: the function's call.
            tensors: copies of the call's tensors, which the graph may change.
        """
        self._tried = trial = _Trial()
        try:
            with torch.compiler.set_stance("default"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return trial.order_of(call.run_on(tensors, self._followed), tensors)
        except Exception:  # noqa: BLE001 - of code that is run again, where it counts
            return None
        finally:
            self._tried = None

    def forget(self) -> None:
        """Forget what Dynamo made of functions, whose frames and guards hold tensors."""
        self._made.clear()
        torch._dynamo.reset()  # noqa: SLF001 - public under no other name

    def _followed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if function not in self._made:
            # that of its class is redirected to memplan
            self._made[function] = _TorchDynamoContext.__call__(self._context, function)
        return self._made[function]

    @functools.cached_property
    def _context(self) -> Any:
        context: Any = torch._dynamo.optimize(self._graph_run, dynamic=False, guard_filter_fn=_kept)  # noqa: SLF001 - what ``torch.compile`` calls
        read = context.callback

        def callback(frame: Any, *others: Any) -> Any:
            if frame.f_code.co_filename.startswith(_OWN_FILES):  # of what records the code between graphs
                return ConvertFrameReturn()
            with ExitStack() as stack:
                stack.enter_context(self._reading())
                stack.enter_context(config.patch(suppress_errors=True))
                return read(frame, *others)

        callback._torchdynamo_orig_backend = read  # type: ignore[attr-defined]  # noqa: SLF001 - how wrappers hold what they wrap
        context.callback = callback
        return context

    def _graph_run(self, graph: fx.GraphModule, _examples: Any) -> GraphRun:
        compiled: GraphRun | None = None

        def run(*inputs: Any) -> Sequence[Any]:
            nonlocal compiled
            if self._tried is not None:
                return self._tried.run(graph, inputs)
            if compiled is None:
                compiled = self._compiled(graph, inputs)
            return compiled(*inputs)

        return run


class _Trial:
    """A run of a function on copies of its tensors, which ends where a second graph begins."""

    def __init__(self) -> None:
        self._surroundings = _surroundings()
        self._results: Sequence[Any] | None = None

    def run(self, graph: fx.GraphModule, inputs: tuple[Any, ...]) -> Sequence[Any]:
        """Run the function's graph."""
        if self._results is not None or _surroundings() != self._surroundings:
            raise _SeveralGraphsError("a graph is not the first, or code around it changes how it keeps tensors")
        self._results = graph(*inputs)
        return self._results

    def order_of(self, returned: Any, tensors: Sequence[torch.Tensor]) -> tuple[int, ...] | None:
        """Return the numbers of the function's results in the order in which the graph returns them."""
        if self._results is None:
            return None
        numbers = {id(each): number for number, each in enumerate(tensors)}
        for each in self._results:
            numbers.setdefault(id(each), len(numbers))
        results, _rest = taken_apart(returned)
        if any(id(each) not in numbers for each in results):
            return None
        return tuple(sorted(range(len(results)), key=lambda number: numbers[id(results[number])]))


class GraphCall:
    """A call of a graph, with the weights among its tensors first, as of ``FunctionCall``.

    Args:
        graph: the graph, whose nodes are described by the paths of their modules.
        inputs: what it is given.
        weights: the ``id`` of each tensor that counts as a weight.
    """

    def __init__(self, graph: fx.GraphModule, inputs: Sequence[Any], weights: set[int]) -> None:
        self._graph = graph
        are_weights = [id(each) in weights for each in inputs]
        self.order = sorted(range(len(inputs)), key=lambda at: not are_weights[at])
        self.weight_count = sum(are_weights)
        self.tensors = tuple(inputs[at] for at in self.order)

    @property
    def key(self) -> Any:
        """What tells the graph and its tensors, whose values are not known; layers that are alike share it."""
        held = (*self._graph.parameters(), *self._graph.buffers())
        return (
            self._graph.print_readable(print_output=False),
            tuple(map(id, held)),
            tuple(map(module_path_of, self._graph.graph.nodes)),
            tuple(self.order),
            self.weight_count,
            kinds_of(self.tensors),
            modes_of_operators(),
        )

    def run_on(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Run the graph on tensors of which the weights come first; nodes describe what they make."""
        inputs = dict(zip(self.order, tensors, strict=True))
        return fx.Interpreter(self._graph).run(*(inputs[at] for at in range(len(inputs))))


def _kept(guards: Sequence[Any]) -> list[bool]:
    return [each.guard_type != _MODES_GUARD for each in guards]


def _surroundings() -> tuple[Any, ...]:
    """Return what decides, outside of a graph, which tensors are kept for the backward pass, and their types."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)  # noqa: SLF001 - public under no other name
    return (*modes_of_operators(), hooks)
