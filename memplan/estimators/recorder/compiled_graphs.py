"""Compiled functions of a step, run as the graphs that Inductor makes of them.

AOTAutograd turns a function into a graph of its forward and one of its backward pass, which recomputes what is cheap,
with Inductor's decompositions and partitioner. It is given the function whole, or each of Dynamo's graphs of it where
that breaks it. The code that Inductor writes for the graphs is run in place of their operators.
"""

from __future__ import annotations

import functools
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._inductor import config
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.utils import count_tangents
from torch._inductor.virtualized import V
from torch.fx import traceback
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from memplan.estimators.absent_card.cuda_emulation import emulation_suspended
from memplan.estimators.fake_tensors.replaced import replaced
from memplan.estimators.lowering.card_decompositions import as_on_a_card, as_written
from memplan.estimators.lowering.inductor_code import inductor_code
from memplan.estimators.lowering.padded_products import products_padded
from memplan.estimators.recorder.capture_context import as_if_compiling, forget_modules, name_modules
from memplan.estimators.recorder.compiled_calls import REFUSED_NOTE, UNCOMPILED_NOTE, NotCapturableError, unwatched
from memplan.estimators.recorder.cuda_graphs import Pass, empty_like
from memplan.estimators.recorder.dynamo_runs import DynamoRuns, GraphCall
from memplan.estimators.recorder.function_call import FunctionCall, modules_behind, weights_of
from memplan.training.sharding import gathers_inside
from memplan.training.tensors_apart import put_together, taken_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch import nn

    from memplan.estimators.lowering.inductor_card import InductorCard
    from memplan.estimators.recorder.compiled_code import CodeRunner
    from memplan.estimators.recorder.module_paths import ModulePaths
    from memplan.estimators.recorder.operator_recorder import OperatorRecorder


@dataclass(frozen=True, slots=True, kw_only=True)
class _Graphs:
    """A function that was turned into graphs.

    Args:
        run: takes the tensors and returns those of the result.
        result_rest: all else of the result.
    """

    run: Callable[..., Sequence[torch.Tensor]]
    result_rest: bytes

    def result_of(self, tensors: Iterable[torch.Tensor]) -> Any:
        """Return what the function returns."""
        return put_together(self.run(*tensors), self.result_rest)


class CompiledGraphs:
    """Runs functions as compiled, and records what their code allocates.

    Args:
        runner: runs the code of graphs.
        operators: takes no part while functions are captured.
        paths: path of the running module.
        card: the card that code is made for.
        accumulates: whether gradients are added up over several backward passes.
        whole: code that is one graph, and in which order this returns the code's results; None of code that breaks.
            Shared by runs of the same step.
    """

    def __init__(
        self,
        runner: CodeRunner,
        operators: OperatorRecorder,
        paths: ModulePaths,
        *,
        card: InductorCard,
        accumulates: bool,
        whole: dict[Any, tuple[int, ...] | None],
    ) -> None:
        self._runner = runner
        self._operators = operators
        self._paths = paths
        self._card = card
        self._accumulates = accumulates
        self._whole = whole
        self._known: dict[Any, _Graphs] = {}
        self._dynamo = DynamoRuns(self._run_of_graph, self._reading_code)
        self._modules: tuple[nn.Module, ...] = ()  # of the function that Dynamo runs
        self._settings: Mapping[str, Any] = {}  # those that the function which is called was compiled with
        self._notes: dict[str, None] = {}
        self.is_capturing = False

    @property
    def notes(self) -> tuple[str, ...]:
        """Say so where a graph of a function runs uncompiled, and where PyTorch refuses to run it."""
        refused = (REFUSED_NOTE,) if self._accumulates and self._runner.graphs.run_backward else ()
        return (*self._notes, *refused)

    def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        settings: Mapping[str, Any],
    ) -> Any:
        """Return what a function returns that was compiled with settings of Inductor.

        Raises:
            NotCapturableError: it cannot be turned into graphs.
        """
        self._runner.graphs.note_call()
        with replaced(self, "_settings", settings), config.patch(dict(settings)):
            return self._result_of(function, args, kwargs)

    def _result_of(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        modules = modules_behind(function, pytree.tree_leaves((args, kwargs)))
        if any(gathers_inside(each, function) for each in modules):
            return self._run_by_dynamo(modules, function, args, kwargs)
        call = FunctionCall(function, args, kwargs)
        try:
            graphs = self._known.get(self._key_of(call))
        except TypeError as error:
            raise NotCapturableError(f"it is given what cannot be compared: {error}") from error
        if graphs is None:
            order = self._order_of_results(call)
            if order is None:
                return self._run_by_dynamo(modules, function, args, kwargs)
            described = functools.partial(as_if_compiling, self._paths)
            graphs = self._captured(call, described, order=order)
            self._known[self._key_of(call)] = graphs
        return graphs.result_of(call.tensors)

    def forget(self) -> None:
        """Forget all graphs, which hold tensors."""
        self._known.clear()
        self._dynamo.forget()

    def _order_of_results(self, call: FunctionCall) -> tuple[int, ...] | None:
        """Return in which order the one graph of a function returns its results; None of one that breaks."""
        code_key = call.code_key
        if code_key not in self._whole:
            with self._reading_code():
                copies = tuple(map(_example_of, call.tensors))
                self._whole[code_key] = self._dynamo.results_of_one_graph(call, copies)
        return self._whole[code_key]

    def _run_by_dynamo(
        self,
        modules: tuple[nn.Module, ...],
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        with replaced(self, "_modules", modules):
            return self._dynamo.run(function, args, kwargs)

    @contextmanager
    def _reading_code(self) -> Iterator[None]:
        """Let Dynamo find PyTorch and the model as they are while the context is open."""
        with ExitStack() as stack:
            for each in (self._operators.set_aside(), self._paths.untracked(), unwatched(), emulation_suspended()):
                stack.enter_context(each)
            yield

    def _run_of_graph(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
        """Return what runs one of Dynamo's graphs as compiled, or uncompiled where that fails."""
        name_modules(graph, self._paths)
        call = GraphCall(graph, inputs, {id(each) for each in weights_of(self._modules)})
        graphs = self._known.get(self._key_of(call))
        if graphs is None:
            try:
                graphs = self._captured(call, traceback.preserve_node_meta, order=None)
            except NotCapturableError:
                self._notes[UNCOMPILED_NOTE] = None
                return graph
            self._known[self._key_of(call)] = graphs
        return functools.partial(_run_in_order, graphs, call.order)

    def _key_of(self, call: FunctionCall | GraphCall) -> Any:
        return call.key, repr(self._settings)

    def _captured(
        self,
        call: FunctionCall | GraphCall,
        described: Callable[[], AbstractContextManager[None]],
        *,
        order: Sequence[int] | None,
    ) -> _Graphs:
        """Return the graphs of a call.

        Args:
            call: the call.
            described: a context within which nodes are described.
            order: numbers of the results in the order in which the graphs return them; None where it is their own.
        """
        rests: list[bytes] = []
        calls = [call]  # emptied once it was captured, because it holds the batch

        def flat(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            with described():
                results, rest = taken_apart(calls[0].run_on(tensors))
            rests.append(rest)
            return results if order is None else tuple(results[number] for number in order)

        lowered = functools.partial(self._lowered, weight_count=call.weight_count, settings=self._settings)
        run = aot_function(
            flat,
            fw_compiler=functools.partial(lowered, kind=Pass.FORWARD),
            bw_compiler=functools.partial(lowered, kind=Pass.BACKWARD),
            inference_compiler=functools.partial(self._lowered_inference, lowered, weight_count=call.weight_count),
            partition_fn=functools.partial(self._partitioned, weight_count=call.weight_count),
            decompositions=select_decomp_table(),
            num_params_buffers=call.weight_count,
            keep_inference_input_mutations=True,
        )
        self.is_capturing = True
        try:
            with self._operators.set_aside(), as_on_a_card():
                examples = tuple(map(_example_of, call.tensors))
                with tracing(TracingContext(detect_fake_mode(examples))):
                    run(*examples)
        except Exception as error:
            raise NotCapturableError(str(error)) from error
        finally:
            self.is_capturing = False
            calls.clear()
        return _Graphs(run=run if order is None else _returning_in_order(run, order), result_rest=rests[0])

    def _partitioned(
        self, graph: fx.GraphModule, inputs: Sequence[Any], *, weight_count: int, **settings: Any
    ) -> tuple[Any, Any]:
        if any(getattr(graph, each.target).requires_grad for each in graph.graph.find_nodes(op="get_attr")):
            raise NotCapturableError("it trains a tensor that it was not given")
        _rewrite(graph, weight_count)
        parts = min_cut_rematerialization_partition(graph, inputs, compiler="inductor", **settings)
        forget_modules(parts[1])
        return parts

    @staticmethod
    def _lowered_inference(
        lowered: Callable[..., Callable[[list[Any]], Any]],
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        *,
        weight_count: int,
    ) -> Callable[[list[Any]], Any]:
        _rewrite(gm, weight_count)
        return lowered(gm, example_inputs, kind=Pass.INFERENCE)

    def _lowered(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        *,
        kind: Pass,
        weight_count: int,
        settings: Mapping[str, Any],
    ) -> Callable[[list[Any]], Any]:
        is_backward = kind is Pass.BACKWARD
        static_count = count_tangents(gm) if is_backward else weight_count  # of a backward pass: what it was kept
        with as_written():
            code = inductor_code(
                gm,
                example_inputs,
                self._card,
                is_inference=kind is Pass.INFERENCE,
                is_backward=is_backward,
                settings=settings,
            )
        run_code = self._runner.loaded(code, kind, range(static_count))

        def run(inputs: list[Any]) -> Any:
            return run_code(inputs, is_recorded=not self.is_capturing)

        run._boxed_call = True  # type: ignore[attr-defined]  # noqa: SLF001 - lets AOTAutograd give its inputs away
        return run


def _rewrite(graph: fx.GraphModule, weight_count: int) -> None:
    """Let Inductor rewrite a graph as it does before it parts the backward pass from the forward pass."""
    values = [each.meta.get("val") for each in graph.graph.find_nodes(op="placeholder")]
    weight_lengths = {length for each in values[:weight_count] for length in each.shape}
    with V.set_fake_mode(detect_fake_mode(values)), products_padded(weight_lengths):
        joint_graph_passes(graph)


def _run_in_order(graphs: _Graphs, order: Sequence[int], *inputs: Any) -> Sequence[Any]:
    """Run graphs of which the inputs come in another order."""
    results: Sequence[Any] = graphs.result_of(inputs[at] for at in order)
    return results


def _returning_in_order(run: Callable[..., Sequence[Any]], order: Sequence[int]) -> Callable[..., Sequence[Any]]:
    """Return what runs graphs, and puts results that come in another order into their own."""

    def run_on(*tensors: torch.Tensor) -> Sequence[Any]:
        places = dict(zip(order, run(*tensors), strict=True))
        return [places[number] for number in range(len(places))]

    return run_on


def _example_of(tensor: Any) -> torch.Tensor:
    """Return a tensor alike to capture a function with: graphs keep it, and would keep the batch."""
    with torch.no_grad():
        example = _of_parts(tensor) if is_traceable_wrapper_subclass(tensor) else empty_like(tensor)
    return example.requires_grad_(tensor.requires_grad)


def _of_parts(tensor: Any) -> torch.Tensor:
    """Return a tensor like one of several parts; which these are is told as AOTAutograd asks it."""
    names, context = tensor.__tensor_flatten__()
    parts = {name: _example_of(getattr(tensor, name)) for name in names}
    return type(tensor).__tensor_unflatten__(parts, context, tensor.shape, tensor.stride())  # type: ignore[no-any-return]  # by its protocol
