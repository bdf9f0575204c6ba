"""CUDA graphs of compiled code, which share one pool of memory that keeps all it gets.

What Inductor compiles with ``triton.cudagraphs``, as the mode ``reduce-overhead`` does, runs once as it is, in the pool
of the graphs, and is recorded when it is called next. A recording copies its inputs to where the graph reads them, but
for weights and what an earlier graph of the same path made. A path begins with a call of a compiled function after a
backward pass, and what is left of the one before is then freed, whoever holds it (``CUDAGraphTreeManager`` and
``CUDAGraphNode`` in ``torch/_inductor/cudagraph_trees.py``, torch 2.9 to 2.15).

A graph that is replayed takes nothing from the allocator. Where one is in a step that is traced, it is counted as if it
were recorded again: an upper bound of what is allocated, and nothing more to reserve.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import torch

from memplan.estimators.absent_card.card_streams import GraphStream, entered
from memplan.results import Component

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from memplan.estimators.recorder.operator_recorder import OperatorRecorder
    from memplan.estimators.recorder.recording import Recording
    from memplan.estimators.recorder.storages import StorageLedger

_TREES = "torch._inductor.cudagraph_trees"


class Pass(Enum):
    """What the code of a graph computes."""

    FORWARD = auto()
    BACKWARD = auto()
    INFERENCE = auto()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphPart:
    """Code that is recorded as one CUDA graph.

    Args:
        run: runs the code on a list of inputs, which it empties.
        kind: what it computes.
        static_inputs: numbers of the inputs that lie in the same place in every step, as weights do.
        changed_inputs: numbers of the inputs that it writes to.
    """

    run: Callable[[list[Any]], Any]
    kind: Pass
    static_inputs: Collection[int]
    changed_inputs: frozenset[int]


class CudaGraphs:
    """Runs code as CUDA graphs are warmed up, recorded and replayed, and records what that allocates.

    Args:
        recording: where events go.
        operators: records the calls of libraries.
        ledger: blocks of the storages.
    """

    def __init__(self, recording: Recording, operators: OperatorRecorder, ledger: StorageLedger) -> None:
        self._recording = recording
        self._operators = operators
        self._ledger = ledger
        self._stream: GraphStream | None = None  # made with the first graph
        self._calls = 0  # of compiled functions
        self._path: tuple[GraphPart, ...] = ()  # what ran in the current step
        self._generation = 0  # that of the path
        self._awaits_backward = False
        self._is_warming_up = False
        self._warm: set[GraphPart] = set()
        self._recorded: set[tuple[GraphPart, ...]] = set()

    @property
    def run_backward(self) -> bool:
        """Whether any backward pass ran as a graph."""
        return any(each.kind is Pass.BACKWARD for each in self._warm)

    def note_call(self) -> None:
        """Take note that a compiled function is called."""
        self._calls += 1

    def note_backward(self) -> None:
        """Take note that a backward pass of compiled code has begun, in graphs or not."""
        self._awaits_backward = False

    def run(self, part: GraphPart, inputs: list[Any]) -> Any:
        """Return what code returns for a list of inputs, which is emptied."""
        if self._stream is None:
            self._stream = GraphStream()
            self._recording.return_cache_for_graph()  # an empty one
        stream_number = self._recording.number_of(self._stream)
        generation = _step_marks() or self._calls
        self._end_path(stream_number, generation)
        copied = [number for number in range(len(inputs)) if self._is_copied(part, number, inputs, stream_number)]
        if not part.changed_inputs.isdisjoint(copied):
            return part.run(inputs)  # as PyTorch does, which says so
        self._is_warming_up = self._is_warming_up or part not in self._warm
        self._warm.add(part)
        self._path, self._generation = (*self._path, part), generation
        with entered(self._stream):
            if not self._is_warming_up:
                self._copy(copied, inputs, part)
            self._operators.free_workspaces()
            if not self._is_warming_up and self._path not in self._recorded:
                self._recorded.add(self._path)
                self._recording.return_cache_for_graph()
            results = part.run(inputs)
            self._operators.free_workspaces()
        if part.kind is not Pass.INFERENCE:
            self._awaits_backward = part.kind is Pass.FORWARD
        return results

    def _end_path(self, stream_number: int, generation: int) -> None:
        """End the path where its step is over, or nothing is left of what it made."""
        is_next = generation != self._generation and (_step_marks() != 0 or not self._awaits_backward)
        if self._path and (is_next or not self._ledger.holds_any_on(stream_number)):
            self._ledger.free_on(stream_number)
            self._path, self._is_warming_up = (), False

    def _is_copied(self, part: GraphPart, number: int, inputs: Sequence[Any], stream_number: int) -> bool:
        """Whether an input has to be copied to where the graph reads it."""
        if number in part.static_inputs or not isinstance(inputs[number], torch.Tensor):
            return False
        block = self._ledger.block_of(inputs[number])
        return block is None or self._recording.streams[block] != stream_number

    def _copy(self, copied: Sequence[int], inputs: list[Any], part: GraphPart) -> None:
        component = Component.TEMPORARIES if part.kind is Pass.BACKWARD else Component.INPUTS
        with self._operators.paused():
            copies = [empty_like(inputs[number]) for number in copied]
        self._ledger.track_all(copies, component, module="", operator="inputs of a CUDA graph")
        for number, copy in zip(copied, copies, strict=True):
            inputs[number] = copy


def _step_marks() -> int:
    """Return a number that ``torch.compiler.cudagraph_mark_step_begin`` changes; 0 where it was never called."""
    trees = sys.modules.get(_TREES)
    return 0 if trees is None else trees.MarkStepBox.mark_step_counter


def empty_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return an empty tensor that lies in memory as another does, expanded dimensions included."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
