"""Compiled functions of a step, run as the graphs that Inductor makes of them.

AOTAutograd turns a function into a graph of its forward and one of its backward pass, which recomputes what is cheap,
with Inductor's decompositions and partitioner. It is given the function whole: where ``torch.compile`` would break the
graph, the parts are taken for one. Launches of the graphs' kernels are recorded in place of their operators.
"""

from __future__ import annotations

import itertools
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import detect_fake_mode
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.virtualized import V
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch.fx import traceback
from torch.utils import _pytree as pytree
from torch.utils import checkpoint

from memplan.estimators.fake_tensors.replaced import replaced
from memplan.estimators.lowering.inductor_kernels import owner_of, schedule
from memplan.estimators.recorder.compiled_calls import NotCapturableError
from memplan.results import Component

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from memplan.estimators.lowering.inductor_kernels import Launch
    from memplan.estimators.recorder.module_paths import ModulePaths
    from memplan.estimators.recorder.operator_recorder import OperatorRecorder
    from memplan.estimators.recorder.storages import StorageLedger


@dataclass(frozen=True, slots=True, kw_only=True)
class _Graphs:
    """A function that was turned into graphs.

    Args:
        run: takes the tensors and returns those of the result.
        result_spec: how the result is made of them.
    """

    run: Callable[..., Sequence[Any]]
    result_spec: pytree.TreeSpec


_PLAIN = (bool, int, float, str)
_PLACES = frozenset({"layer_idx", "layer_id", "layer_index", "layer_number", "block_idx", "idx", "index"})
_RANDOM_STATE_BYTES = 16  # a seed and an offset, as CUDA's generators have them
_region_numbers = itertools.count(1)  # of checkpointed regions


class CompiledGraphs:
    """Runs functions as compiled, and records what the kernels allocate.

    Args:
        operators: records the calls of libraries.
        ledger: blocks of the storages.
        paths: path of the running module.
    """

    def __init__(self, operators: OperatorRecorder, ledger: StorageLedger, paths: ModulePaths) -> None:
        self._operators = operators
        self._ledger = ledger
        self._paths = paths
        self._known: dict[Any, _Graphs] = {}
        self._donated: frozenset[str] = frozenset()
        self.is_capturing = False

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what a compiled function returns.

        Raises:
            NotCapturableError: it cannot be turned into graphs.
        """
        if self.is_capturing:
            return function(*args, **kwargs)
        call = _Call(function, args, kwargs)
        try:
            graphs = self._known.get(call.key)
        except TypeError as error:
            raise NotCapturableError(f"it is given what cannot be compared: {error}") from error
        if graphs is None:
            graphs = self._known[call.key] = self._captured(call)
        return pytree.tree_unflatten(graphs.run(*call.tensors), graphs.result_spec)

    def _captured(self, call: _Call) -> _Graphs:
        specs: list[pytree.TreeSpec] = []
        calls = [call]  # emptied once it was captured, because it holds the batch

        def flat(*tensors: torch.Tensor) -> list[Any]:
            with _as_if_compiling():
                results, spec = pytree.tree_flatten(calls[0].run_on(tensors))
            specs.append(spec)
            return results

        run = aot_function(
            flat,
            fw_compiler=self._lowered,
            bw_compiler=self._lowered,
            inference_compiler=self._lowered,
            partition_fn=self._partitioned,
            decompositions=select_decomp_table(),
            num_params_buffers=call.weight_count,
            keep_inference_input_mutations=True,
        )
        self.is_capturing = True
        try:
            with self._operators.set_aside():
                run(*map(_example_of, call.tensors))
        except Exception as error:
            raise NotCapturableError(str(error)) from error
        finally:
            self.is_capturing = False
            calls.clear()
        return _Graphs(run=run, result_spec=specs[0])

    def _partitioned(self, graph: fx.GraphModule, inputs: Sequence[Any], **settings: Any) -> tuple[Any, Any]:
        if any(getattr(graph, each.target).requires_grad for each in graph.graph.find_nodes(op="get_attr")):
            raise NotCapturableError("it trains a tensor that it was not given")
        values = [each.meta.get("val") for each in graph.graph.find_nodes(op="placeholder")]
        with V.set_fake_mode(detect_fake_mode(values)):
            joint_graph_passes(graph)
        parts = min_cut_rematerialization_partition(graph, inputs, compiler="inductor", **settings)
        self._donated = _donated(parts[0], settings["num_fwd_outputs"])
        return parts

    def _lowered(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],  # noqa: ARG002 - AOTAutograd's
    ) -> Callable[[list[Any]], Any]:
        launches = schedule(gm.graph, self._donated)

        def run(inputs: list[Any]) -> Any:
            return self._run(gm, launches, inputs)

        run._boxed_call = True  # type: ignore[attr-defined]  # noqa: SLF001 - lets AOTAutograd give its inputs away
        return run

    def _run(self, graph: fx.GraphModule, launches: tuple[Launch, ...], inputs: list[Any]) -> Any:
        values: dict[fx.Node, Any] = {}
        inputs.reverse()
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                values[node] = inputs.pop()
            elif node.op == "get_attr":
                values[node] = getattr(graph, node.target)
        for launch in launches:
            if launch.is_joined:
                with self._operators.paused():
                    _compute(launch.computes, values)
                for node in launch.writes:
                    self._write(node, launch, values)
            else:
                _compute(launch.computes, values)
            for node in launch.releases:
                values.pop(node, None)
        (output,) = graph.graph.find_nodes(op="output")
        return fx.map_arg(output.args[0], values.__getitem__)

    def _write(self, node: fx.Node, launch: Launch, values: dict[fx.Node, Any]) -> None:
        buffer = launch.in_place.get(node)
        if buffer is not None:
            for each in launch.releases:
                if owner_of(each) is buffer:
                    values.pop(each, None)
        if self.is_capturing:
            return
        tensors = [each for each in pytree.tree_leaves(values[node]) if isinstance(each, torch.Tensor)]
        self._ledger.track_all(
            tensors, Component.TEMPORARIES, module=self._paths.current, operator=f"compiled {node.target}"
        )


def _example_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor alike to capture a function with: graphs keep it, and would keep the batch."""
    with torch.no_grad():
        example = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return example.requires_grad_(tensor.requires_grad)


def _compute(nodes: Sequence[fx.Node], values: dict[fx.Node, Any]) -> None:
    for node in nodes:
        if node.op == "call_function":
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            operator: Any = node.target
            if operator in _KEEPING_RANDOM_STATE:
                values[node] = _KEEPING_RANDOM_STATE[operator](*args, **kwargs)
            else:
                values[node] = operator(*args, **kwargs)


def _run_and_save_random_state(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return torch.empty(_RANDOM_STATE_BYTES, dtype=torch.uint8), operator(*args, **kwargs)


def _run_with_random_state(_state: torch.Tensor, operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return operator(*args, **kwargs)


# What the partitioner puts around random operators that it recomputes (``torch/_prims/rng_prims.py``).
_KEEPING_RANDOM_STATE: dict[Any, Callable[..., Any]] = {
    run_and_save_rng_state: _run_and_save_random_state,
    run_with_rng_state: _run_with_random_state,
}


def _donated(forward: fx.GraphModule, result_count: int) -> frozenset[str]:
    """Return the names of what is saved for the backward pass that it may write over: what nobody else holds.

    ``collect_fw_donated_buffer_idxs`` in ``torch/_functorch/_aot_autograd/graph_compile.py``.
    """
    (output,) = forward.graph.find_nodes(op="output")
    nodes = [each if isinstance(each, fx.Node) else None for each in output.args[0]]
    held = {owner_of(each) for each in nodes[:result_count] if each is not None}
    saved = [each for each in nodes[result_count:] if each is not None]
    free = (each for each in saved if owner_of(each).op == "call_function" and owner_of(each) not in held)
    return frozenset(each.name for each in free)


class _Call:
    """A call of a function with the weights of the modules that it runs.

    Args:
        function: what is called; modules are found behind it as its owner, and among its arguments.
        args: positional arguments.
        kwargs: arguments by name.
    """

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._function = function
        self._leaves, self._spec = pytree.tree_flatten((args, kwargs))
        self._places = [at for at, each in enumerate(self._leaves) if isinstance(each, torch.Tensor)]
        self._modules = _modules_of(function, self._leaves)
        self._slots: list[tuple[dict[str, Any], str]] = [
            (holder, name)
            for root in self._modules
            for module in root.modules()
            for holder in (module._parameters, module._buffers)  # noqa: SLF001 - public methods return copies
            for name, tensor in holder.items()
            if tensor is not None
        ]
        weights = {id(tensor): tensor for holder, name in self._slots if (tensor := holder[name]) is not None}
        self._identities = tuple(weights)
        self.weight_count = len(weights)
        self.tensors: tuple[torch.Tensor, ...] = (*weights.values(), *(self._leaves[at] for at in self._places))

    @property
    def key(self) -> Any:
        """What the function's graphs hold for; modules that are alike share them, as a model's layers are."""
        is_own = (torch.Tensor, nn.Module)
        return (
            getattr(self._function, "__func__", self._function),
            tuple(map(_structure, self._modules)),
            self._spec,
            tuple(None if isinstance(each, is_own) else each for each in self._leaves),
            tuple((each.shape, each.stride(), each.dtype, each.requires_grad) for each in self.tensors),
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
        )

    def run_on(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Call the function with other tensors in the place of its own."""
        leaves = list(self._leaves)
        for at, each in zip(self._places, tensors[self.weight_count :], strict=True):
            leaves[at] = each
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        given = dict(zip(self._identities, tensors[: self.weight_count], strict=True))
        own = [(holder, name, holder[name]) for holder, name in self._slots]
        try:
            for holder, name, tensor in own:
                holder[name] = given[id(tensor)]
            return self._function(*args, **kwargs)
        finally:
            for holder, name, tensor in own:
                holder[name] = tensor


def _modules_of(function: Callable[..., Any], leaves: Sequence[Any]) -> tuple[nn.Module, ...]:
    """Return the modules that a function can reach: its owner, what it closes over, its globals, and its arguments."""
    code = getattr(function, "__code__", None)
    reached = [
        getattr(function, "__self__", None),
        *(each.cell_contents for each in getattr(function, "__closure__", None) or ()),
        *(getattr(function, "__globals__", {}).get(name) for name in (code.co_names if code else ())),
        *leaves,
    ]
    return tuple(dict.fromkeys(each for each in reached if isinstance(each, nn.Module)))


def _structure(module: nn.Module) -> Any:
    """Return what a module's code can tell it by, but for its place among others."""
    return tuple(
        (
            type(each),
            tuple((name, it) for name, it in vars(each).items() if isinstance(it, _PLAIN) and name not in _PLACES),
        )
        for each in module.modules()
    )


@contextmanager
def _as_if_compiling() -> Iterator[None]:
    """Let libraries that ask know that they are compiled, and mark what activation checkpointing recomputes."""
    with ExitStack() as stack:
        stack.enter_context(replaced(checkpoint, "_checkpoint_without_reentrant_generator", _marking_generator))
        stack.enter_context(replaced(checkpoint, "CheckpointFunction", SimpleNamespace(apply=_run_marked)))
        stack.enter_context(traceback.preserve_node_meta())
        stack.enter_context(replaced(torch.compiler, "_is_compiling_flag", True))
        stack.enter_context(replaced(torch.compiler, "is_dynamo_compiling", lambda: True))
        yield


def _marking_generator(*_args: Any, **_kwargs: Any) -> Iterator[None]:
    """Mark what is made between its two steps, in the place of PyTorch's generator, as checkpointed."""
    with _marked():
        yield


def _run_marked(function: Callable[..., Any], _preserves_rng_state: bool, *args: Any) -> Any:
    with _marked():
        return function(*args)


@contextmanager
def _marked() -> Iterator[None]:
    """Let the partitioner recompute what is made while the context is open.

    As ``TagActivationCheckpoint`` in ``torch/_higher_order_ops/wrap.py``, by which Dynamo captures checkpointing.
    """
    marks = {"recompute": checkpoint.CheckpointPolicy.MUST_RECOMPUTE, "ac_graph_id": next(_region_numbers)}
    described = traceback.get_current_meta()
    before = {name: described[name] for name in marks if name in described}
    described.update(marks)
    try:
        yield
    finally:
        for name in marks:
            del described[name]
        described.update(before)
