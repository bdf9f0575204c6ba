"""Runs the launches of compiled graphs, and records the buffers that they write.

When kernels run for the first time, Inductor times variants of them on their own buffers, or on copies of those that
they change where these fit below the peak so far, and overwrites the card's cache in between by a buffer of its size
(``CachingAutotuner.bench`` and ``InductorBenchmarker.benchmark_gpu`` in ``torch/_inductor/runtime``, torch 2.13). A run
that finds such timings on disk repeats none.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch.utils import _pytree as pytree

from memplan.estimators.fake_tensors.replaced import replaced
from memplan.estimators.lowering.inductor_layouts import in_preferred_layout
from memplan.estimators.lowering.inductor_values import owner_of, size_bytes_of
from memplan.estimators.recorder.capture_context import module_path_of
from memplan.results import Component

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from memplan.estimators.lowering.inductor_concatenation import Place
    from memplan.estimators.lowering.launches import Launch
    from memplan.estimators.recorder.module_paths import ModulePaths
    from memplan.estimators.recorder.operator_recorder import OperatorRecorder
    from memplan.estimators.recorder.recording import Recording
    from memplan.estimators.recorder.storages import StorageLedger

_IMAGE_DIMS = 4
_RANDOM_STATE_BYTES = 16  # a seed and an offset, as CUDA's generators have them


class LaunchRunner:
    """Runs kernels and calls of libraries in the order in which Inductor has them.

    Args:
        recording: where events go.
        operators: records the calls of libraries.
        ledger: blocks of the storages.
        paths: path of the running module.
        cache_bytes: size of the card's second cache.
    """

    def __init__(
        self,
        recording: Recording,
        operators: OperatorRecorder,
        ledger: StorageLedger,
        paths: ModulePaths,
        *,
        cache_bytes: int,
    ) -> None:
        self._recording = recording
        self._operators = operators
        self._ledger = ledger
        self._paths = paths
        self._cache_bytes = cache_bytes
        self._is_recorded = True

    def run(self, graph: fx.GraphModule, launches: Sequence[Launch], inputs: list[Any], *, is_timed: bool) -> Any:
        """Return what a graph returns, and record what its launches allocate.

        Args:
            graph: the graph.
            launches: what runs it, in order.
            inputs: what it is given; emptied, so that nothing holds what is not needed any more.
            is_timed: whether the kernels run for the first time.
        """
        values = _given(graph, inputs)
        for launch in launches:
            self._launch(launch, values)
            if is_timed and launch.writes:
                self._time_kernels(launch)
            for node in launch.releases:
                values.pop(node, None)
        (output,) = graph.graph.find_nodes(op="output")
        return fx.map_arg(output.args[0], values.__getitem__)

    def run_unrecorded(self, graph: fx.GraphModule, launches: Sequence[Launch], inputs: list[Any]) -> Any:
        """Return what a graph returns; nothing of it is recorded."""
        with replaced(self, "_is_recorded", False):
            return self.run(graph, launches, inputs, is_timed=False)

    def _launch(self, launch: Launch, values: dict[fx.Node, Any]) -> None:
        with self._operators.paused() if launch.is_joined else nullcontext():
            for node in launch.computes:
                if node in values:
                    continue
                taking_over = nullcontext() if launch.is_joined else self._taking_over(node, launch, values)
                with taking_over, self._paths.inside(module_path_of(node)):
                    _compute(node, values)
                if node in launch.places:
                    self._move(node, launch.places[node], values)
        for node in launch.writes:
            with self._taking_over(node, launch, values), self._paths.inside(module_path_of(node)):
                self._write(node, values)

    def _move(self, node: fx.Node, place: Place, values: dict[fx.Node, Any]) -> None:
        """Let a value lie in its place, in a buffer that is made with the first part of it."""
        value, buffer = values[node], place.buffer
        if buffer not in values:
            values[buffer] = _buffer_of(buffer, like=value)
            with self._paths.inside(module_path_of(buffer)):
                self._write(buffer, values)
        values[node] = values[buffer].narrow(place.dim, place.start, value.shape[place.dim])

    @contextmanager
    def _taking_over(self, node: fx.Node, launch: Launch, values: dict[fx.Node, Any]) -> Iterator[None]:
        """Give up the buffer whose place a node takes, if any, to what is made while the context is open."""
        buffer = launch.takes_over.get(node)
        if buffer is None:
            yield
            return
        with self._ledger.handing_over():
            for each in launch.releases:
                if owner_of(each) is buffer:
                    values.pop(each, None)
            yield

    def _time_kernels(self, launch: Launch) -> None:
        room_bytes = self._recording.room_bytes if launch.mutates else 0
        copied: list[int] = []
        for size_bytes in map(size_bytes_of, launch.mutates):
            if size_bytes <= room_bytes:
                copied.append(size_bytes)
                room_bytes -= size_bytes
        for sizes_bytes in (copied, [self._cache_bytes, *copied]):
            blocks = [
                self._recording.allocate(each, Component.WORKSPACES, module="", operator="timing of compiled kernels")
                for each in sizes_bytes
            ]
            for block in reversed(blocks):
                self._recording.free(block)

    def _write(self, node: fx.Node, values: dict[fx.Node, Any]) -> None:
        if not self._is_recorded:
            return
        tensors = [each for each in pytree.tree_leaves(values[node]) if isinstance(each, torch.Tensor)]
        self._ledger.track_all(
            tensors, Component.TEMPORARIES, module=self._paths.current, operator=f"compiled {node.target}"
        )


def _given(graph: fx.GraphModule, inputs: list[Any]) -> dict[fx.Node, Any]:
    """Return the values that a graph begins with, and empty the list of its inputs."""
    values: dict[fx.Node, Any] = {}
    inputs.reverse()
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            values[node] = inputs.pop()
        elif node.op == "get_attr":
            values[node] = getattr(graph, node.target)
    return values


def _compute(node: fx.Node, values: dict[fx.Node, Any]) -> None:
    if node.op == "call_function":
        args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
        operator: Any = node.target
        result = _REPLACED.get(operator, operator)(*args, **kwargs)
        values[node] = in_preferred_layout(node, result, args)


def _buffer_of(concatenation: fx.Node, *, like: torch.Tensor) -> torch.Tensor:
    """Return a buffer for a concatenation in the memory format of a part of it."""
    described = concatenation.meta["val"]
    is_channels_last = like.dim() == _IMAGE_DIMS and like.is_contiguous(memory_format=torch.channels_last)
    memory_format = torch.channels_last if is_channels_last else torch.contiguous_format
    return torch.empty(described.shape, dtype=described.dtype, memory_format=memory_format)


def _run_and_save_random_state(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return torch.empty(_RANDOM_STATE_BYTES, dtype=torch.uint8), operator(*args, **kwargs)


def _run_with_random_state(_state: torch.Tensor, operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return operator(*args, **kwargs)


_REPLACED: dict[Any, Callable[..., Any]] = {
    # what the partitioner puts around random operators that it recomputes (torch/_prims/rng_prims.py)
    run_and_save_rng_state: _run_and_save_random_state,
    run_with_rng_state: _run_with_random_state,
    # whose strides need not be those that it was captured with (view_to_reshape in torch/_inductor/compile_fx.py)
    torch.ops.aten.view.default: torch.ops.aten.reshape.default,
}
