"""Steps whose code the user compiled, on a card: what Inductor's kernels write, and not what each operator would."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

from memplan.devices.cards import DeviceKind, DeviceSpec
from memplan.estimators.breakdown import live_blocks_at
from memplan.estimators.recorder.compiled_calls import GRAPHS_NOTE, REFUSED_NOTE, UNCOMPILED_NOTE
from memplan.estimators.step_trace import PHASES
from memplan.results import Component, Phase
from memplan.torch_releases import release_of
from memplan.units import GIB, MIB
from memplan.workload import Workload
from tests.contract.tracing import FOUR_SAMPLES, TEMPLATE_OF_COMPILED, traced

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from memplan.estimators import StepTrace
    from memplan.recipe import Recipe

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # of what compile imports

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the child cannot import the tests
CARD = DeviceSpec(name="a100-80gb", kind=DeviceKind.CUDA, total_bytes=80 * GIB, compute_capability=(8, 0), sm_count=108)
HOST = DeviceSpec(name="cpu", kind=DeviceKind.CPU, total_bytes=80 * GIB)
WIDTH = 512
ROW_BYTES = WIDTH * 4
SAMPLES = 1000


def waves(values: torch.Tensor) -> torch.Tensor:
    """Keeps, uncompiled, what each of the four reads."""
    return values.sin().cos().sin().cos()


def multiplied_waves(values: torch.Tensor) -> torch.Tensor:
    """Keeps two products more: one of 512 rows and, for each sample, one of its own."""
    return waves(values @ (values.T @ values))


def waves_compiled_when_needed(values: torch.Tensor) -> torch.Tensor:
    return torch.compile(waves)(values)


def scaled_waves(values: torch.Tensor) -> torch.Tensor:
    """Computes with a number that is read of a tensor, between graphs."""
    values = waves(values)
    return values * values.sum().item()


def joined_scaled_waves(values: torch.Tensor) -> torch.Tensor:
    """Uses a number that follows from one that is read of a tensor twice, in one graph with what it makes of both."""
    number = values.sum().item() + 1
    return waves(values.sin() * number + values.cos() * number)


def waves_decided_between(values: torch.Tensor) -> torch.Tensor:
    """Goes on by a number that is read of a tensor: two more waves, or no more."""
    values = waves(values)
    return waves(waves(values)) if values.sum().item() > 0 else values


def counted_waves(values: torch.Tensor) -> torch.Tensor:
    """Counts by what is read of a tensor, which nothing can stand for."""
    return waves(values) * max(1, int(values.sum().item()))


def interrupted_waves(values: torch.Tensor) -> torch.Tensor:
    """Breaks its graph: the second is given what the first returns, and keeps it."""
    values = waves(values)
    torch._dynamo.graph_break()
    return waves(values)


def interrupted_multiplied_waves(values: torch.Tensor) -> torch.Tensor:
    """Breaks its graph, and checkpoints the second, of two products."""
    values = waves(values)
    torch._dynamo.graph_break()
    return checkpoint(multiplied_waves, values, use_reentrant=False)


@torch.compiler.disable
def left_uncompiled(values: torch.Tensor) -> torch.Tensor:
    return values.exp()


def waves_of_uncompiled(values: torch.Tensor) -> torch.Tensor:
    """Breaks its graph at code that makes a tensor."""
    return waves(left_uncompiled(waves(values)))


def waves_of_interrupted_checkpoint(values: torch.Tensor) -> torch.Tensor:
    """Checkpoints what breaks its graph, so that the graphs run within the checkpoint and not with one in them."""
    return waves(checkpoint(interrupted_waves, values, use_reentrant=False))


def waves_of_products(values: torch.Tensor) -> torch.Tensor:
    """Keeps three products; what is made of each is only needed for the next."""
    square = torch.ones(WIDTH, WIDTH)
    for _ in range(3):
        values = (values @ square).sin()
    return values


def joined_waves(values: torch.Tensor) -> torch.Tensor:
    """Multiplies what it joins."""
    return torch.cat([values.sin(), values.cos()]) @ torch.ones(WIDTH, WIDTH)


class Net(nn.Linear):
    """A product and a function of it."""

    def __init__(self, function: Callable[[torch.Tensor], Any] = waves, *, checkpoints: bool = False) -> None:
        super().__init__(WIDTH, WIDTH, bias=False)
        self.function = function
        self.checkpoints = checkpoints

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        product = super().forward(batch)
        return checkpoint(self.function, product, use_reentrant=False) if self.checkpoints else self.function(product)


@dataclass
class Waves:
    """Holds what a function returns, as a cache or a model's output does."""

    values: torch.Tensor

    def sum(self) -> torch.Tensor:
        return self.values.sum()


def held_waves(values: torch.Tensor) -> Waves:
    return Waves(waves(values))


def compiled_by_itself() -> nn.Module:
    model = Net()
    model.compile()
    return model


def compiled_layers() -> nn.Module:
    return nn.Sequential(torch.compile(Net()), torch.compile(Net()))


def follow(average: torch.Tensor, gradient: torch.Tensor) -> None:
    average.copy_(average * 0.9 + gradient * 0.1)


class InTwoParts(torch.optim.SGD):
    """Averages gradients in tensors of two parts, as optimizers of few bits keep numbers and scales."""

    def __init__(self, parameters: Any, follow: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
        super().__init__(parameters, lr=0.1)
        self.follow = follow

    def step(self, closure: Any = None) -> None:
        for each in self.param_groups[0]["params"]:
            if not self.state[each]:
                self.state[each]["average"] = TwoTensor(torch.zeros_like(each), torch.zeros_like(each))
            self.follow(self.state[each]["average"], TwoTensor(each.grad, each.grad))


class NotingItsProcess(Net):
    """Notes in which process it runs, and on how many samples.

    Args:
        folder: where.
        has_a_thread: whether there is a thread beside it.
    """

    def __init__(self, folder: Path, *, has_a_thread: bool) -> None:
        super().__init__(torch.compile(waves))
        self.folder = folder
        if has_a_thread:
            threading.Thread(target=time.sleep, args=(600,), daemon=True).start()

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        (self.folder / f"{len(batch)} {os.getpid()}").touch()
        return super().forward(batch)


def trace_of(
    model: Callable[[], nn.Module],
    device: DeviceSpec = CARD,
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    recipe: Recipe = FOUR_SAMPLES,
) -> StepTrace:
    workload = Workload(
        model=model,
        batch=lambda size: torch.zeros(size, WIDTH),
        loss=lambda model, batch: model(batch).sum(),
        optimizer=optimizer,
    )
    return traced(workload, device, recipe, template=TEMPLATE_OF_COMPILED)


def shard_compiled_layers(model: nn.Sequential, _: Recipe) -> None:
    for name, layer in list(model.named_children()):
        model.register_module(name, torch.compile(layer))
        fully_shard(model.get_submodule(name))
    fully_shard(model)


def shard_layers_that_compile_themselves(model: nn.Sequential, _: Recipe) -> None:
    for layer in model:
        layer.compile()
        fully_shard(layer)
    fully_shard(model)


def shard_layers_and_compile_all(model: nn.Sequential, _: Recipe) -> None:
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    model.compile()


def wrap_compiled_layers(model: nn.Sequential, _: Recipe) -> nn.Module:
    for name, layer in list(model.named_children()):
        model.register_module(name, FullyShardedDataParallel(torch.compile(layer), use_orig_params=True))
    return FullyShardedDataParallel(model, use_orig_params=True)


def wrap_layers_and_compile_all(model: nn.Sequential, _: Recipe) -> nn.Module:
    policy = ModuleWrapPolicy({Net})
    wrapped = FullyShardedDataParallel(model, auto_wrap_policy=policy, use_orig_params=True)
    wrapped.compile()
    return wrapped


def shard_layers(model: nn.Sequential, _: Recipe) -> None:
    for layer in model:
        fully_shard(layer)


def summed(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).sum()


def summed_as_compiled(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return torch.compile(summed)(model, batch)


def sharded_trace_of(
    shard: Callable[[nn.Module, Recipe], Any],
    device: DeviceSpec = CARD,
    loss: Callable[[nn.Module, torch.Tensor], torch.Tensor] = summed,
) -> StepTrace:
    workload = Workload(
        model=lambda: nn.Sequential(Net(), Net()),
        batch=lambda size: torch.zeros(size, WIDTH),
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        shard=shard,
    )
    return traced(workload, device, replace(FOUR_SAMPLES, world_size=4), template=TEMPLATE_OF_COMPILED)


def kept_rows(trace: StepTrace) -> float:
    """Return how many rows of numbers the forward pass leaves for the backward pass, for each sample."""
    return sum(kept_rows_by_module(trace).values())


def kept_rows_by_module(trace: StepTrace) -> dict[str, float]:
    (timeline,) = trace.timelines
    last = int(np.flatnonzero(timeline.event_phases == PHASES.index(Phase.FORWARD))[-1])
    sizes = timeline.block_bytes(SAMPLES) / (SAMPLES * ROW_BYTES)
    rows: dict[str, float] = defaultdict(float)
    for each in live_blocks_at(timeline, last):
        if timeline.components[each] == Component.ACTIVATIONS:
            rows[timeline.module_names[timeline.modules[each]]] += sizes[each]
    return rows


def rows_of_forward_blocks(trace: StepTrace) -> np.ndarray:
    """Return how many rows of numbers each block has that the last forward pass allocates, for each sample."""
    (timeline,) = trace.timelines
    is_forward = timeline.event_phases == PHASES.index(Phase.FORWARD)
    in_last_step = np.arange(len(is_forward)) >= timeline.step_starts[-1]
    made = timeline.event_blocks[timeline.event_allocates & is_forward & in_last_step]
    return timeline.block_bytes(SAMPLES)[made] / (SAMPLES * ROW_BYTES)


def test_uncompiled_code_keeps_what_each_operator_needs() -> None:
    trace = trace_of(Net)
    assert kept_rows(trace) == pytest.approx(4, abs=0.01)
    assert trace.notes == ()


@pytest.mark.parametrize(
    ("model", "rows"),
    [
        pytest.param(lambda: torch.compile(Net()), 1, id="a compiled module"),
        pytest.param(compiled_by_itself, 1, id="a module that compiled itself"),
        pytest.param(lambda: Net(torch.compile(waves)), 1, id="a compiled function"),
        pytest.param(lambda: Net(waves_compiled_when_needed), 1, id="a function that the step compiles"),
        pytest.param(lambda: Net(torch.compile(held_waves)), 1, id="a function that returns an object"),
        pytest.param(compiled_layers, 3, id="two compiled layers"),  # the second reads what the first returns
    ],
)
def test_compiled_code_keeps_its_products_and_computes_the_rest_again(
    model: Callable[[], nn.Module], rows: int
) -> None:
    trace = trace_of(model)
    assert kept_rows(trace) == pytest.approx(rows, abs=0.01)
    assert trace.notes == (GRAPHS_NOTE,)


@pytest.mark.parametrize(("checkpoints", "rows"), [(False, 2 + 512 / SAMPLES), (True, 1)])
def test_what_compiled_code_checkpoints_is_computed_again(checkpoints: bool, rows: float) -> None:
    trace = trace_of(lambda: torch.compile(Net(multiplied_waves, checkpoints=checkpoints)))
    assert kept_rows(trace) == pytest.approx(rows, abs=0.01)


@pytest.mark.parametrize(
    ("function", "rows"),
    [
        pytest.param(interrupted_waves, 2, id="each graph keeps what it is given"),
        pytest.param(interrupted_multiplied_waves, 2, id="what a graph checkpoints is computed again"),
        pytest.param(waves_of_uncompiled, 2, id="code between graphs runs as it is"),
        pytest.param(waves_of_interrupted_checkpoint, 2, id="graphs run within a checkpoint"),
    ],
)
def test_a_function_is_followed_where_its_graph_breaks(function: Callable[..., Any], rows: int) -> None:
    trace = trace_of(lambda: torch.compile(Net(function)))
    assert kept_rows(trace) == pytest.approx(rows, abs=0.01)
    assert trace.notes == (GRAPHS_NOTE,)


@pytest.mark.parametrize("function", [scaled_waves, joined_scaled_waves])
def test_a_function_that_computes_with_what_it_reads_is_followed_too(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    trace = trace_of(lambda: torch.compile(Net(function)))
    assert kept_rows(trace) == pytest.approx(1, abs=0.01)
    assert GRAPHS_NOTE in trace.notes
    assert any(each.startswith("computed numbers that the model reads") for each in trace.notes)


@pytest.mark.skipif(
    release_of(torch.__version__) < (2, 13), reason="before, the first graph keeps what it returns besides"
)
def test_of_a_function_that_decides_by_what_it_reads_the_larger_way_is_traced() -> None:
    trace = trace_of(lambda: torch.compile(Net(waves_decided_between)))
    assert kept_rows(trace) == pytest.approx(2, abs=0.01)  # its product, and what the second graph is given
    assert any("are tried both ways" in each for each in trace.notes)


def test_what_parts_of_a_function_keep_is_told_apart() -> None:
    def run(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        first = model[0](batch)
        torch._dynamo.graph_break()
        return model[1](first)

    class Both(nn.Sequential):
        forward = run

    rows = kept_rows_by_module(trace_of(lambda: torch.compile(Both(Net(), Net()))))
    assert rows["_orig_mod.0"] == pytest.approx(2, abs=0.01)  # its product, and what the second reads
    assert rows["_orig_mod.1"] == pytest.approx(1, abs=0.01)


def test_what_cannot_be_captured_is_traced_as_it_runs_uncompiled() -> None:
    trace = trace_of(lambda: torch.compile(Net(counted_waves)))
    assert UNCOMPILED_NOTE in trace.notes
    assert GRAPHS_NOTE not in trace.notes


@pytest.mark.parametrize(
    ("model", "first", "second"),
    [
        pytest.param(lambda: torch.compile(nn.Sequential(Net(), Net())), "_orig_mod.0", "_orig_mod.1", id="a model"),
        pytest.param(compiled_layers, "0._orig_mod", "1._orig_mod", id="layers that share graphs"),
    ],
)
def test_what_compiled_modules_keep_is_told_apart(model: Callable[[], nn.Module], first: str, second: str) -> None:
    rows = kept_rows_by_module(trace_of(model))
    assert rows[first] == pytest.approx(2, abs=0.01)  # its product, and what the second reads
    assert rows[second] == pytest.approx(1, abs=0.01)


def test_on_the_cpu_compiled_code_is_traced_uncompiled() -> None:
    trace = trace_of(lambda: torch.compile(Net()), HOST)
    assert kept_rows(trace) == pytest.approx(4, abs=0.01)
    assert trace.notes == (UNCOMPILED_NOTE,)


def net_in_cuda_graphs() -> nn.Module:
    return torch.compile(Net(), mode="reduce-overhead")


def test_cuda_graphs_keep_the_memory_of_both_passes_and_copy_the_batch_from_the_second_step_on() -> None:
    trace = trace_of(net_in_cuda_graphs)
    (timeline,) = trace.timelines
    (stream,) = timeline.graph_streams
    assert trace.notes == (GRAPHS_NOTE,)
    operators = np.array(timeline.operator_names)[timeline.operators]
    sizes = timeline.block_bytes(SAMPLES)
    copies = np.flatnonzero(operators == "inputs of a CUDA graph")
    assert {timeline.side_streams[block] for block in copies.tolist()} == {stream}
    assert {*timeline.steps[[*timeline.side_streams]].tolist()} == {0, 1}  # the third replays
    rows = SAMPLES * ROW_BYTES
    assert timeline.steps[copies][sizes[copies] == rows].tolist() == [1, 1]  # the batch, and the loss's gradient
    # an empty graph before the first step's, and in the second one of each pass
    assert np.searchsorted(timeline.step_starts, timeline.cache_returns, side="right").tolist() == [1, 2, 2]


def test_gradients_that_a_cuda_graph_made_cannot_be_accumulated() -> None:
    recipe = replace(FOUR_SAMPLES, accumulation_steps=2)
    assert REFUSED_NOTE in trace_of(net_in_cuda_graphs, recipe=recipe).notes
    assert REFUSED_NOTE not in trace_of(lambda: torch.compile(Net()), recipe=recipe).notes


def test_kernels_are_timed_in_the_first_step_alone_with_a_buffer_as_large_as_the_cards_cache() -> None:
    (timeline,) = trace_of(lambda: torch.compile(Net())).timelines
    timing = timeline.operator_names.index("timing of compiled kernels")
    timed = [each for each in np.flatnonzero(timeline.operators == timing) if timeline.block_bytes(SAMPLES)[each]]
    assert max(timeline.block_bytes(SAMPLES)[timed]) == 40 * MIB  # of an A100
    second_step = timeline.step_starts[-1]
    assert not set(timed) & set(timeline.event_blocks[second_step:])


@pytest.mark.parametrize(("is_compiled", "temporary_bytes"), [(False, 2 * MIB), (True, 0)])
def test_steps_on_tensors_of_several_parts_write_where_these_are(is_compiled: bool, temporary_bytes: int) -> None:
    trace = trace_of(Net, optimizer=lambda given: InTwoParts(given, torch.compile(follow) if is_compiled else follow))
    (timeline,) = trace.timelines
    sizes = timeline.block_bytes(SAMPLES)
    in_last_step = np.arange(len(timeline.event_phases)) >= timeline.step_starts[-1]
    is_made_in_step = timeline.event_allocates & (timeline.event_phases == PHASES.index(Phase.OPTIMIZER_STEP))
    made = timeline.event_blocks[is_made_in_step & in_last_step]
    assert sum(sizes[each] for each in made) == 3 * temporary_bytes  # two products and their sum, in two parts each


def test_a_buffer_that_takes_the_place_of_another_is_not_asked_of_the_allocator() -> None:
    rows = rows_of_forward_blocks(trace_of(lambda: Net(torch.compile(waves_of_products))))
    assert np.count_nonzero(rows == 1) == 1 + 1 + 3 + 1  # batch, layer, products, and one buffer for all three waves


def test_what_is_concatenated_lies_in_the_concatenation() -> None:
    rows = rows_of_forward_blocks(trace_of(lambda: Net(torch.compile(joined_waves))))
    assert np.count_nonzero(rows == 1) == 2  # batch and layer
    assert np.count_nonzero(rows == 2) == 2  # what is joined, and the product


def test_every_size_is_answered_by_one_timeline() -> None:
    trace = trace_of(lambda: torch.compile(Net()))
    assert trace.traced_batch_sizes[0] == FOUR_SAMPLES.micro_batch_size
    assert len(trace.timelines) == 1


def test_two_sizes_are_traced_at_the_same_time_unless_a_fork_would_lack_threads(tmp_path: Path) -> None:
    def processes_and_sizes_bytes(name: str, *, has_a_thread: bool) -> tuple[int, list[int]]:
        folder = tmp_path / name
        folder.mkdir()
        (timeline,) = trace_of(functools.partial(NotingItsProcess, folder, has_a_thread=has_a_thread)).timelines
        sizes, processes = zip(*sorted(each.name.split() for each in folder.iterdir()), strict=True)
        assert sizes == ("4", "8")
        return len(set(processes)), timeline.block_bytes(SAMPLES)[timeline.event_blocks].tolist()

    forked, alone = (processes_and_sizes_bytes(str(thread), has_a_thread=thread) for thread in (False, True))
    assert (forked[0], alone[0]) == (2, 1)
    assert forked[1] == alone[1]


@pytest.mark.parametrize(
    "shard",
    [
        shard_compiled_layers,
        shard_layers_that_compile_themselves,
        shard_layers_and_compile_all,
        wrap_compiled_layers,
        wrap_layers_and_compile_all,
    ],
)
def test_what_sharded_layers_compile_is_followed(shard: Callable[[nn.Module, Recipe], Any]) -> None:
    trace = sharded_trace_of(shard)
    # a product of each layer, and what the second is given; a layer that is gathered takes the rest
    assert kept_rows(trace) == pytest.approx(3, abs=0.01)
    assert trace.notes == (GRAPHS_NOTE,)


def test_layers_are_followed_too_where_what_is_compiled_is_given_the_sharded_model() -> None:
    trace = sharded_trace_of(shard_layers, loss=summed_as_compiled)
    assert kept_rows(trace) == pytest.approx(3, abs=0.01)
    assert trace.notes == (GRAPHS_NOTE,)


def test_on_the_cpu_what_sharded_layers_compile_is_traced_uncompiled() -> None:
    trace = sharded_trace_of(shard_layers_and_compile_all, HOST)
    assert trace.notes == (UNCOMPILED_NOTE,)
