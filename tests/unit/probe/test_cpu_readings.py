"""Readings of real steps on the CPU, with sizes that can be added up in the head."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._dynamo.utils import counters

from memplan import Recipe, Workload
from memplan.probe.attribution import AttributedPeak
from memplan.probe.cpu_readings import attribute_step, breakdown_of, resident_bytes, slack_bytes
from memplan.probe.known_blocks import storage_references
from memplan.probe.training_loop import build_training, run_optimizer_step
from memplan.results import Component
from memplan.units import GIB, KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]


class Wide(torch.nn.Module):
    """Two 512x512 weights of 1 MiB each, a buffer of 1 MiB, and a tanh between that is kept for the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(512, 512, bias=False)
        self.second = torch.nn.Linear(512, 512, bias=False)
        self.register_buffer("kept", torch.zeros(512, 512))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(rows).tanh())


@pytest.fixture(autouse=True, scope="module")
def _objects_of_other_tests_are_set_aside() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _nothing_was_compiled_by_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(counters, "frames", Counter())
    monkeypatch.setitem(counters, "stats", Counter())


def plain_loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).mean()


def attributed(steps: int = 1, **changes: Any) -> AttributedPeak:
    accumulation_steps = changes.pop("accumulation_steps", 1)
    earlier = changes.pop("earlier", {})
    parts = {
        "model": Wide,
        "batch": lambda size: torch.ones(size, 512),
        "loss": plain_loss,
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    }
    recipe = Recipe(micro_batch_size=2048, accumulation_steps=accumulation_steps)
    state = build_training(Workload(**{**parts, **changes}), recipe, torch.device("cpu"), seed=0)
    for _ in range(steps):
        run_optimizer_step(state)
    return attribute_step(state, earlier)


def attributed_as_in_a_trial(**changes: Any) -> AttributedPeak:
    return attributed(earlier=storage_references("cpu"), **changes)


def in_mib(peak: AttributedPeak, component: Component) -> float:
    return peak.components[component] / MIB


def test_a_step_is_split_into_its_components() -> None:
    peak = attributed()
    assert in_mib(peak, Component.PARAMETERS) == 2
    assert in_mib(peak, Component.BUFFERS) == 1
    assert in_mib(peak, Component.INPUTS) == 4
    # 2048 rows of 512 numbers take 4 MiB: the tanh is kept, and its gradient comes in while it is still needed
    assert in_mib(peak, Component.ACTIVATIONS) == pytest.approx(4, abs=0.1)
    assert sum(peak.components.values()) == peak.allocated_bytes


def test_gradients_of_an_earlier_micro_step_are_resident_at_the_peak() -> None:
    once, twice = attributed(), attributed(accumulation_steps=2)
    assert in_mib(twice, Component.GRADIENTS) == 2
    assert attributed(accumulation_steps=9).components == twice.components
    assert twice.allocated_bytes - once.allocated_bytes >= MIB


def test_gradients_that_are_only_zeroed_stay_resident() -> None:
    assert in_mib(attributed(zero_grad_set_to_none=False), Component.GRADIENTS) == 2


def test_moments_and_moving_averages_are_optimizer_state() -> None:
    peak = attributed(ema=True, optimizer=torch.optim.Adam)
    # two moments of 2 MiB, a copy of weights and buffer of 3 MiB, two step counters of 4 bytes
    assert peak.components[Component.OPTIMIZER_STATE] == 7 * MIB + 8


def test_what_user_code_gives_back_within_a_step_counts_no_longer() -> None:
    queue = [torch.ones(3 * 512, 512)]  # 3 MiB, alive in both

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        queue.append(torch.ones(3 * 512, 512))
        del queue[0]
        return model(batch).mean()

    assert attributed(loss=loss).allocated_bytes == attributed().allocated_bytes


def rows_of(data: torch.Tensor) -> Callable[[int], torch.Tensor]:
    return lambda size: data[:size].clone()


def test_a_data_set_that_only_batches_are_made_of_is_no_part_of_the_step() -> None:
    def peak_with(make_batch: Callable[[int], torch.Tensor]) -> AttributedPeak:
        return attributed_as_in_a_trial(
            batch=make_batch, evaluate=lambda model, batch: model(batch), evaluation_batch=make_batch
        )

    data = torch.ones(32 * 512, 512)  # 32 MiB
    assert peak_with(rows_of(data)).components == peak_with(lambda size: torch.ones(size, 512)).components
    assert in_mib(peak_with(rows_of(data)), Component.TEMPORARIES) < 32


def test_what_user_code_gives_back_counts_no_longer_beside_a_data_set_either() -> None:
    # In a new process: PyTorch tells of frees at addresses that it allocated under an earlier profiler.
    module = "tests.unit.probe.test_cpu_readings"
    asked = f"from {module} import attributed_beside_a_data_set as run; print(*run(), sep='\\n')"
    said = subprocess.run(
        [sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert said[-2:] == [str(3 * MIB), "[0, 1, 0, 0]"]  # no step that is not followed between the two that are


def attributed_beside_a_data_set() -> tuple[int, list[int]]:
    """Return what a queue of 3 MiB adds to the peak, and the modes that each step of it runs under."""
    data, queue, watched = torch.ones(32 * 512, 512), [torch.ones(3 * 512, 512)], []

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        watched.append(torch._C._len_torch_dispatch_stack())
        queue.append(torch.ones(3 * 512, 512))
        del queue[0]
        return model(batch).mean()

    peak, without = (attributed_as_in_a_trial(loss=each, batch=rows_of(data)) for each in (loss, plain_loss))
    return peak.allocated_bytes - without.allocated_bytes, watched


def test_a_data_set_of_which_the_batch_is_a_view_counts_as_input() -> None:
    data = torch.ones(32 * 512, 512)
    assert in_mib(attributed_as_in_a_trial(batch=lambda size: data[:size]), Component.INPUTS) == 32


def test_a_teacher_in_the_closure_of_the_loss_counts() -> None:
    teacher, unused = torch.nn.Linear(512, 8 * 512, bias=False), torch.ones(32 * 512, 512)

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = teacher(batch[:1]).mean()
        assert len(unused)
        return (model(batch) - wanted).mean()

    peak, without = attributed_as_in_a_trial(loss=loss), attributed_as_in_a_trial()
    assert 8 <= (peak.allocated_bytes - without.allocated_bytes) / MIB < 16  # its weights, and little that it computes


def test_what_evaluation_alone_reads_counts() -> None:
    table = torch.ones(32 * 512, 512)

    def evaluate(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch) @ table[:512]

    assert in_mib(attributed_as_in_a_trial(evaluate=evaluate), Component.TEMPORARIES) >= 32


def test_a_step_that_cannot_be_watched_counts_all_that_is_held() -> None:
    data = torch.ones(32 * 512, 512)

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        if torch._C._len_torch_dispatch_stack():
            raise NotImplementedError
        return model(batch).mean()

    assert in_mib(attributed_as_in_a_trial(loss=loss, batch=rows_of(data)), Component.TEMPORARIES) >= 32


def test_once_code_is_compiled_all_that_is_held_counts() -> None:
    data = torch.ones(32 * 512, 512)
    loss = torch.compile(lambda model, batch: model(batch).mean(), backend="eager", fullgraph=True)
    assert in_mib(attributed_as_in_a_trial(loss=loss, batch=rows_of(data)), Component.TEMPORARIES) >= 32


class Marked(torch.nn.Parameter):
    """A weight that the user's code tells from others."""


def test_weights_of_a_type_of_the_users_count_as_others_do() -> None:
    def marked() -> torch.nn.Module:
        model = Wide()
        model.first.weight = Marked(model.first.weight.data)
        return model

    assert attributed_as_in_a_trial(model=marked).components == attributed_as_in_a_trial().components


def test_tied_weights_count_once() -> None:
    def tied() -> torch.nn.Module:
        model = Wide()
        model.second.weight = model.first.weight
        return model

    assert in_mib(attributed(model=tied), Component.PARAMETERS) == 1


def test_temporaries_inside_a_step_are_seen() -> None:
    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        torch.empty(64 * MIB, dtype=torch.uint8)
        return model(batch).mean()

    peak = attributed(loss=loss)
    assert in_mib(peak, Component.TEMPORARIES) >= 64
    assert in_mib(peak, Component.GRADIENTS) == 0


def test_components_add_up_to_the_process_peak() -> None:
    peak = AttributedPeak(allocated_bytes=30, components={Component.PARAMETERS: 20, Component.INPUTS: 10}, position=1)
    breakdown = breakdown_of(peak, process_bytes=100, context_bytes=60)
    assert (breakdown.parameters, breakdown.inputs, breakdown.allocator_slack, breakdown.context) == (20, 10, 10, 60)
    assert breakdown.total_bytes == 100


def test_pages_of_the_context_that_tensors_took_over_are_not_counted_twice() -> None:
    peak = AttributedPeak(allocated_bytes=50, components={Component.PARAMETERS: 50}, position=1)
    breakdown = breakdown_of(peak, process_bytes=100, context_bytes=60)
    assert (breakdown.context, breakdown.allocator_slack, breakdown.total_bytes) == (50, 0, 100)


def test_bytes_that_never_became_resident_are_negative_slack() -> None:
    peak = AttributedPeak(allocated_bytes=150, components={Component.PARAMETERS: 150}, position=1)
    breakdown = breakdown_of(peak, process_bytes=100, context_bytes=60)
    assert (breakdown.context, breakdown.allocator_slack, breakdown.total_bytes) == (0, -50, 100)


FREED = """
import torch
from memplan.probe.cpu_readings import peak_resident_bytes, resident_bytes
from memplan.units import MIB
before = resident_bytes()
block = torch.ones(64 * MIB, dtype=torch.uint8)
assert resident_bytes() - before >= 63 * MIB
del block
assert peak_resident_bytes() >= before + 63 * MIB
"""


def test_the_resident_peak_holds_what_has_been_freed_since() -> None:
    """In a process of its own, where nothing that other tests left goes meanwhile."""
    ended = subprocess.run([sys.executable, "-c", FREED], check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_the_limit_never_allows_more_than_the_machine_has_free() -> None:
    assert slack_bytes(8 * GIB, 4 * GIB) == GIB  # an eighth
    assert slack_bytes(512 * MIB, 4 * GIB) == 128 * MIB  # the least
    assert slack_bytes(8 * GIB, 100 * MIB) == 100 * MIB
    assert slack_bytes(8 * GIB, -GIB) == 0


LIMITED = """
import resource, sys, torch
from memplan.probe.cpu_readings import limit_data_bytes, raise_data_limit, resident_bytes
from memplan.units import MIB
torch.ones(512, 512) @ torch.ones(512, 512)
limit_data_bytes(resident_bytes() + 100 * MIB, 50 * MIB)
kept = [torch.ones(120 * MIB, dtype=torch.uint8)]
try:
    kept.append(torch.ones(100 * MIB, dtype=torch.uint8))
    sys.exit("the limit did not hold")
except RuntimeError as error:
    assert "can't allocate memory" in str(error), error
raise_data_limit(200 * MIB)
kept.append(torch.ones(100 * MIB, dtype=torch.uint8))
raise_data_limit(None)
assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.getrlimit(resource.RLIMIT_DATA)[1]
"""


def test_allocations_fail_above_the_limit_and_work_again_once_it_is_raised() -> None:
    ended = subprocess.run([sys.executable, "-c", LIMITED], check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_kib_of_the_kernel_are_read_as_bytes() -> None:
    assert resident_bytes() % (4 * KIB) == 0
    assert resident_bytes() > 50 * MIB
