"""What is recorded where code runs as CUDA graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from memplan.devices.cards import find_card
from memplan.estimators.lowering.target_device import kernels_of
from memplan.estimators.recorder.cuda_graphs import CudaGraphs, GraphPart, Pass
from memplan.estimators.recorder.module_paths import ModulePaths
from memplan.estimators.recorder.operator_recorder import OperatorRecorder
from memplan.estimators.recorder.recording import Recording
from memplan.estimators.recorder.storages import StorageLedger
from memplan.results import Component

if TYPE_CHECKING:
    from collections.abc import Callable

INPUT, RESULT = 16, 32  # numbers of four bytes
WORKSPACE = 2 * (4096 * 1024) + 8 * 16 * 1024  # bytes that cuBLAS takes


class Recorder:
    """Runs parts as CUDA graphs, and tells what that allocates and frees."""

    def __init__(self) -> None:
        self.recording = Recording(micro_batch_size=1)
        self.ledger = StorageLedger(self.recording)
        self.operators = OperatorRecorder(
            self.recording,
            self.ledger,
            ModulePaths(nn.Module()),
            kernels=kernels_of(find_card("a100-80gb")),
            host_copies=None,
            fakes=None,
        )
        self.graphs = CudaGraphs(self.recording, self.operators, self.ledger)
        self._told = 0

    def part(
        self, kind: Pass = Pass.INFERENCE, *, run: Callable[[torch.Tensor], Any] | None = None, **numbers: Any
    ) -> GraphPart:
        """A graph that is given one tensor."""
        of_one = run or (lambda _: torch.ones(RESULT))

        def run_on(inputs: list[Any]) -> Any:
            (given,) = inputs
            inputs.clear()
            return of_one(given)

        return GraphPart(run=run_on, kind=kind, **{"static_inputs": (), "changed_inputs": frozenset(), **numbers})

    def given(self) -> torch.Tensor:
        """A tensor that no graph made."""
        with self.operators.paused():
            made = torch.ones(INPUT)
        self.ledger.track(made, Component.INPUTS, module="", operator="batch")
        return made

    def call(self, part: GraphPart, given: torch.Tensor) -> Any:
        """Call a compiled function that is one graph."""
        self.graphs.note_call()
        return self.graphs.run(part, [given])

    def told(self) -> str:
        """Events that were not yet told, as ``+2`` or ``-2``: sign and numbers, and ``*`` for the graphs' stream.

        ``|`` stands where cached memory is returned.
        """
        found, recording = [], self.recording
        for at, (block, allocates) in enumerate(zip(recording.event_blocks, recording.event_allocates, strict=True)):
            found += ["|"] * recording.graph_returns.count(at)
            mark = "*" if recording.streams[block] in recording.graph_streams else ""
            found.append(f"{'+' if allocates else '-'}{recording.block_bytes[block] // 4}{mark}")
        found += ["|"] * recording.graph_returns.count(len(recording.event_blocks))
        told, self._told = found[self._told :], len(found)
        return " ".join(told)


@pytest.fixture
def recorder() -> Any:
    made = Recorder()
    with made.operators:
        yield made


def test_a_graph_is_warmed_up_then_recorded_with_a_copy_of_what_it_is_given_then_replayed(recorder: Recorder) -> None:
    part, given = recorder.part(), recorder.given()
    result = recorder.call(part, given)
    assert recorder.told() == "+16 | +32*"
    del result
    result = recorder.call(part, given)
    assert recorder.told() == "-32* +16* | +32* -16*"
    del result
    recorder.call(part, given)
    assert recorder.told() == "-32* +16* +32* -16* -32*"


def test_weights_are_read_where_they_are(recorder: Recorder) -> None:
    part, weight = recorder.part(static_inputs=(0,)), recorder.given()
    recorder.call(part, weight)
    assert recorder.told() == "+16 | +32* -32*"
    recorder.call(part, weight)
    assert recorder.told() == "| +32* -32*"


def test_all_inputs_are_copied_before_any_is_given_up(recorder: Recorder) -> None:
    part = GraphPart(run=list.clear, kind=Pass.BACKWARD, static_inputs=(), changed_inputs=frozenset())
    for told in ("+16 +16 | -16 -16", "+16 +16 +16* +16* -16 -16 | -16* -16*"):
        recorder.graphs.note_call()
        recorder.graphs.run(part, [recorder.given(), recorder.given()])
        assert recorder.told() == told


def test_what_a_graph_of_the_same_step_made_is_read_where_it_is(recorder: Recorder) -> None:
    first, second, given = recorder.part(), recorder.part(run=lambda _: torch.ones(8)), recorder.given()
    for told in ("+16 | +32* +8* -32* -8*", "+16* | +32* -16* | +8* -32* -8*", "+16* +32* -16* +8* -32* -8*"):
        made = recorder.call(first, given)
        result = recorder.graphs.run(second, [made])
        del made, result
        assert recorder.told() == told


@pytest.mark.parametrize(("is_marked", "freed"), [(False, False), (True, True)])
def test_what_graphs_made_is_freed_when_the_next_step_begins(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, is_marked: bool, freed: bool
) -> None:
    forward, backward, given = recorder.part(Pass.FORWARD), recorder.part(Pass.BACKWARD), recorder.given()
    first = recorder.call(forward, given)
    if is_marked:
        monkeypatch.setattr("memplan.estimators.recorder.cuda_graphs._step_marks", lambda: -1)
    recorder.told()
    second = recorder.call(forward, given)  # the backward pass of the first call is still to come, if nobody says not
    assert ("-32*" in recorder.told()) is freed
    gradient = recorder.graphs.run(backward, [second])
    del first, second
    recorder.told()
    if is_marked:
        monkeypatch.setattr("memplan.estimators.recorder.cuda_graphs._step_marks", lambda: -2)
    recorder.call(forward, given)
    assert recorder.told().startswith("-32* ")  # the gradient, though it is held
    assert gradient.numel() == RESULT


def test_code_that_writes_to_what_it_would_have_to_copy_is_no_graph(recorder: Recorder) -> None:
    part, given = recorder.part(changed_inputs=frozenset({0})), recorder.given()
    recorder.call(part, given)
    recorder.call(part, given)
    assert recorder.told() == "+16 | +32 -32 +32 -32"
    of_weight = recorder.part(changed_inputs=frozenset({0}), static_inputs=(0,))
    recorder.call(of_weight, given)
    assert recorder.told() == "+32* -32*"


def test_workspaces_of_products_are_freed_before_and_after_each_graph(recorder: Recorder) -> None:
    square = torch.ones(4, 4)
    torch.mm(square, square)
    recorder.told()
    recorder.call(recorder.part(run=lambda _: torch.mm(square, square)), recorder.given())
    told = recorder.told().split()
    taken = f"{WORKSPACE // 4}"
    assert told.index(f"-{taken}") < told.index(f"+{taken}*") < told.index(f"-{taken}*")
    assert recorder.graphs.run_backward is False
