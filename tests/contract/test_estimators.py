"""What every estimate promises, on models whose figures can be worked out in the head."""

from __future__ import annotations

import functools
import os
import pickle
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import memplan
from memplan.devices.cards import DeviceKind, DeviceSpec
from memplan.errors import TraceError, UsageError, WorkloadError
from memplan.estimators import (
    StepTrace,
    TracedSetting,
    estimate,
    largest_micro_batch,
    process_peak,
    step_snapshot,
    trace_step,
    trace_steps,
    tracing,
)
from memplan.estimators.allocators.allocator_config import AllocatorConfig
from memplan.estimators.allocators.process_allocators import ProcessAllocators
from memplan.estimators.breakdown import component_bytes, live_blocks_at
from memplan.estimators.step_trace import PHASES
from memplan.recipe import Precision, Recipe
from memplan.results import Component, Estimate, Phase
from memplan.torch_releases import release_of
from memplan.units import GIB, MIB
from memplan.workload import Workload
from tests.contract.tracing import FOUR_SAMPLES, TEMPLATE, traced
from tests.making import context, source_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

cloudpickle.register_pickle_by_value(sys.modules[__name__])

CPU = DeviceSpec(name="cpu", kind=DeviceKind.CPU, total_bytes=8 * GIB, context=context(200))
CARD = DeviceSpec(
    name="rtx-3090",
    kind=DeviceKind.CUDA,
    total_bytes=24 * GIB,
    compute_capability=(8, 6),
    sm_count=82,
    context=context(400),
)
DEVICES = pytest.mark.parametrize("device", [CPU, CARD], ids=["cpu", "card"])


def linear_workload(**changes: object) -> Workload:
    """One bias-free 512 x 512 layer: 1 MiB of weights."""
    parts: dict[str, object] = {
        "model": lambda: nn.Linear(512, 512, bias=False),
        "batch": lambda size: torch.zeros(size, 512),
        "loss": lambda model, batch: model(batch).sum(),
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    }
    return Workload(**{**parts, **changes})


@functools.cache
def linear_trace(device: DeviceSpec) -> StepTrace:
    return traced(linear_workload(), device)


@DEVICES
def test_parameters_gradients_and_adam_state_are_exact_to_the_byte(device: DeviceSpec) -> None:
    breakdown = estimate(linear_trace(device), micro_batch_size=4, device=device).breakdown
    assert breakdown.parameters == MIB
    assert breakdown.gradients == MIB
    counter = 4 if device is CPU else 0  # the step counter stays on the host
    assert breakdown.optimizer_state == 2 * MIB + counter


def test_weights_in_half_precision_take_half() -> None:
    recipe = Recipe(micro_batch_size=4, precision=Precision.BF16_TRUE)
    trace = traced(linear_workload(), CARD, recipe)
    breakdown = estimate(trace, micro_batch_size=4, device=CARD).breakdown
    assert (breakdown.parameters, breakdown.gradients) == (MIB // 2, MIB // 2)


@DEVICES
def test_the_batch_counts_as_input(device: DeviceSpec) -> None:
    assert estimate(linear_trace(device), micro_batch_size=512, device=device).breakdown.inputs == MIB


@DEVICES
@pytest.mark.parametrize("micro_batch_size", [1, 7, 4096])
def test_the_parts_are_whole_bytes_and_add_up_to_the_process_peak(device: DeviceSpec, micro_batch_size: int) -> None:
    found = estimate(linear_trace(device), micro_batch_size=micro_batch_size, device=device)
    assert all(type(size) is int and size >= 0 for size in found.breakdown.values())
    assert sum(found.breakdown.values()) == found.peak_process_bytes
    assert found.peak_requested_bytes <= found.peak_allocated_bytes <= found.peak_reserved_bytes
    assert found.peak_process_bytes >= found.peak_reserved_bytes + device.context_bytes


@DEVICES
def test_a_larger_batch_never_needs_less(device: DeviceSpec) -> None:
    peaks = [
        estimate(linear_trace(device), micro_batch_size=size, device=device).peak_process_bytes for size in range(1, 64)
    ]
    assert peaks == sorted(peaks)


@DEVICES
def test_the_same_question_gets_the_same_answer_in_forks_and_in_a_process_of_its_own(device: DeviceSpec) -> None:
    forked = linear_trace(device), traced(linear_workload(), device)
    own = trace_step(source_of(linear_workload()), FOUR_SAMPLES, device)
    first, *others = (estimate(each, micro_batch_size=9, device=device) for each in (*forked, own))
    assert others == [first, first]


@DEVICES
def test_settings_that_are_traced_together_are_answered_as_each_alone(device: DeviceSpec) -> None:
    twice = replace(FOUR_SAMPLES, accumulation_steps=2)
    settings = [TracedSetting(recipe=FOUR_SAMPLES), TracedSetting(recipe=twice)]
    together = trace_steps(source_of(linear_workload()), settings, device, template=TEMPLATE)
    assert list(together) == settings
    for setting in settings:
        alone = traced(linear_workload(), device, setting.recipe)
        found, expected = (estimate(each, micro_batch_size=9, device=device) for each in (together[setting], alone))
        assert found == expected


def only_in_single_precision(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    result = model(batch)
    assert result.dtype is torch.float32
    return result.sum()


@pytest.mark.parametrize(
    "changes",
    [{"loss": only_in_single_precision}, {"model": lambda: BranchesOnData(512, 512, bias=False)}],
    ids=["raises", "must be computed"],
)
def test_beside_another_a_setting_that_raises_or_must_be_computed_is_left_out(changes: dict[str, Any]) -> None:
    source = source_of(linear_workload(**changes))
    settings = [
        TracedSetting(recipe=replace(FOUR_SAMPLES, precision=each)) for each in (Precision.FP32, Precision.BF16)
    ]
    together = trace_steps(source, settings, CARD, template=TEMPLATE)
    assert list(together) == settings[:1]


@DEVICES
def test_the_largest_micro_batch_fits_and_the_next_does_not(device: DeviceSpec) -> None:
    trace = linear_trace(device)
    size = largest_micro_batch(process_peak(trace, device), limit_bytes=GIB, cap=10**6)
    assert size is not None
    assert estimate(trace, micro_batch_size=size, device=device).peak_process_bytes <= GIB
    assert estimate(trace, micro_batch_size=size + 1, device=device).peak_process_bytes > GIB


def test_the_largest_micro_batch_stops_at_the_cap_and_is_none_where_one_sample_is_too_much() -> None:
    peak_at = process_peak(linear_trace(CPU), CPU)
    assert largest_micro_batch(peak_at, limit_bytes=GIB, cap=64) == 64
    assert largest_micro_batch(peak_at, limit_bytes=MIB, cap=64) is None


def test_a_trace_answers_only_for_the_device_it_was_lowered_to() -> None:
    with pytest.raises(UsageError, match="not to rtx-3090"):
        estimate(linear_trace(CPU), micro_batch_size=4, device=CARD)


def test_expandable_segments_hold_less_than_whole_ones_and_leave_the_tensors_alone() -> None:
    trace, expandable = linear_trace(CARD), ProcessAllocators(cuda=AllocatorConfig(expandable_segments=True))
    whole = estimate(trace, micro_batch_size=4096, device=CARD)
    grown = estimate(trace, micro_batch_size=4096, device=CARD, allocators=expandable)
    assert grown.peak_requested_bytes == whole.peak_requested_bytes
    assert grown.peak_reserved_bytes <= whole.peak_reserved_bytes


def test_the_timeline_is_written_as_a_snapshot_that_names_operators_and_modules() -> None:
    content = pickle.loads(step_snapshot(linear_trace(CARD), micro_batch_size=4))
    names = {frame["name"] for entry in content["device_traces"][0] for frame in entry["frames"]}
    assert {"aten.mm", "parameters", "gradients", "(model)"} <= names
    with pytest.raises(UsageError, match="shows the CUDA allocator"):
        step_snapshot(linear_trace(CPU), micro_batch_size=4)


def test_the_trace_tells_what_the_planner_asks() -> None:
    workload = linear_workload(
        model=lambda: nn.Sequential(nn.Linear(512, 512), nn.BatchNorm1d(512)),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    trace = traced(workload, CPU)
    assert trace.uses_batch_norm
    assert (trace.optimizer_name, trace.workload_name) == ("SGD", "Sequential")
    assert trace.method == "fake-tensor trace"


def test_sizes_that_grow_with_the_square_of_the_batch_are_followed() -> None:
    workload = linear_workload(loss=lambda model, batch: (model(batch) @ batch.T).sum())
    trace = traced(workload, CPU)
    peak = estimate(trace, micro_batch_size=8192, device=CPU).peak_allocated_bytes
    assert peak > 8192 * 8192 * 4
    assert len(trace.traced_batch_sizes) == 3


class BranchesOnData(nn.Linear):
    """Reads a count in forward, which fake tensors do not have."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        result = super().forward(batch)
        return result * 2 if int((result > 1e9).sum()) > 0 else result


def test_a_model_that_branches_on_data_is_computed_at_a_small_batch_and_the_estimate_says_so() -> None:
    workload = linear_workload(model=lambda: BranchesOnData(512, 512, bias=False))
    found = estimate(traced(workload, CARD), micro_batch_size=512, device=CARD)
    assert found.breakdown.parameters == MIB
    assert "real CPU run" in found.method
    assert any("test_estimators.py" in note and "the value of a tensor is read there" in note for note in found.notes)


class AttendsByData(BranchesOnData):
    """Attends to the batch as one sample of 8 heads."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        heads = super().forward(batch).view(-1, 8, 64).transpose(0, 1)
        return nn.functional.scaled_dot_product_attention(heads, heads, heads)


@pytest.mark.parametrize(
    ("model", "device", "told"),
    [(BranchesOnData, CARD, False), (AttendsByData, CARD, True), (AttendsByData, CPU, False)],
    ids=["no-attention", "card", "cpu"],
)
def test_computed_attention_is_told_of_where_a_card_would_keep_less(
    model: type[nn.Module], device: DeviceSpec, *, told: bool
) -> None:
    notes = traced(linear_workload(model=lambda: model(512, 512, bias=False)), device).notes
    (note,) = [each for each in notes if "it was computed on the CPU" in each]
    assert note.endswith("with attention that keeps its probabilities") is told


def test_a_model_that_is_left_in_evaluation_mode_is_told() -> None:
    def notes(loss: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> list[str]:
        workload = linear_workload(model=lambda: nn.Linear(512, 512, bias=False).eval(), loss=loss)
        found = estimate(traced(workload, CARD), micro_batch_size=4, device=CARD)
        return [note for note in found.notes if "evaluation mode" in note]

    assert len(notes(lambda model, batch: model(batch).sum())) == 1
    assert notes(lambda model, batch: model.train()(batch).sum()) == []


@pytest.mark.parametrize(("precision", "is_told"), [("fp32", True), ("bf16-true", False)])
def test_weights_that_the_model_factory_makes_half_as_wide_are_told(precision: str, *, is_told: bool) -> None:
    workload = linear_workload(
        model=lambda: nn.Linear(512, 512, bias=False).to(torch.bfloat16),
        loss=lambda model, batch: model(batch.to(torch.bfloat16)).float().sum(),
    )
    trace = traced(workload, CARD, Recipe(micro_batch_size=4, precision=precision))
    found = estimate(trace, micro_batch_size=4, device=CARD)
    assert found.breakdown.parameters == MIB // 2
    assert any("weights are bfloat16" in note for note in found.notes) is is_told


class ClampsAny(nn.Linear):
    """Takes sines of its result, which are kept, where any number is large or where none is."""

    def __init__(self, *, if_any: bool) -> None:
        super().__init__(512, 512, bias=False)
        self.if_any = if_any

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        result = super().forward(batch)
        return result.sin().cos() if self.holds(result) is self.if_any else result

    def holds(self, result: torch.Tensor) -> bool:
        return bool((result > 5).any())


class ComparesAll(ClampsAny):
    """Does so where the result equals its opposite, or does not; it never equals a part of itself."""

    def holds(self, result: torch.Tensor) -> bool:
        return torch.equal(result, -result) and not torch.equal(result, result[:, 1:])


def beside_certain_sines(trace: StepTrace) -> tuple[Estimate, ...]:
    """What is predicted of a trace, and of one whose step takes sines of the result whatever it is."""
    certain = traced(linear_workload(loss=lambda model, batch: model(batch).sin().cos().sum()), CARD)
    return tuple(estimate(each, micro_batch_size=512, device=CARD) for each in (trace, certain))


@pytest.mark.parametrize("model", [ClampsAny, ComparesAll])
@pytest.mark.parametrize("if_any", [False, True])
def test_branches_on_conditions_are_tried_both_ways_on_a_card(model: type[ClampsAny], *, if_any: bool) -> None:
    trace = traced(linear_workload(model=lambda: model(if_any=if_any)), CARD)
    assert trace.method == "fake-tensor trace"
    found, expected = beside_certain_sines(trace)
    assert found.peak_allocated_bytes == expected.peak_allocated_bytes
    (note,) = trace.notes
    assert "test_estimators.py" in note
    assert "tried both ways" in note


class LogsItsNorm(nn.Linear):
    """Keeps a norm for its logs, and takes sines of its result, which are kept, where that is large or is not."""

    def __init__(self, *, if_large: bool) -> None:
        super().__init__(512, 512, bias=False)
        self.if_large = if_large

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        result = super().forward(batch)
        norm = result.norm().item()
        self.log = f"norm {norm / 2:.3f} of {float(result.sum())}"
        return result.sin().cos() if (norm / 2 > 1e9) is self.if_large else result


@pytest.mark.parametrize("if_large", [False, True])
def test_numbers_that_a_model_reads_may_be_logged_and_branched_on(*, if_large: bool) -> None:
    trace = traced(linear_workload(model=lambda: LogsItsNorm(if_large=if_large)), CARD)
    assert trace.method == "fake-tensor trace"
    found, expected = beside_certain_sines(trace)
    assert found.breakdown.activations - expected.breakdown.activations in range(1024)
    assert sorted(" ".join(note.split()[:2]) for note in trace.notes) == ["computed numbers", "conditions on"]


class HalvesUntilSmall(nn.Linear):
    """Loops on a condition."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        result = super().forward(batch)
        while (result > 1e-3).any():
            result = result / 2
        return result


def test_loops_on_conditions_are_computed() -> None:
    trace = traced(linear_workload(model=lambda: HalvesUntilSmall(512, 512)), CARD)
    assert trace.method.startswith("real CPU run")


class RoutesTokens(nn.Module):
    """Sends each sample to one of two experts, by a score that only computing it tells."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(512, 2, bias=False)
        self.experts = nn.ModuleList(nn.Linear(512, 512, bias=False) for _ in range(2))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        chosen = self.router(batch).argmax(-1)
        return torch.cat([expert(batch[chosen == number]) for number, expert in enumerate(self.experts)])


@pytest.mark.parametrize(
    ("device", "method"), [(CARD, "fake-tensor trace"), (CPU, "real CPU run")], ids=["card", "cpu"]
)
def test_samples_that_a_score_routes_are_presumed_to_spread_evenly_on_a_card(device: DeviceSpec, method: str) -> None:
    trace = traced(linear_workload(model=RoutesTokens), device)
    assert trace.method.startswith(method)
    found = estimate(trace, micro_batch_size=2048, device=device)
    assert any("taken to be even" in note for note in found.notes) is (device is CARD)
    if device is CARD:
        selected = found.breakdown.activations - 2048 * 512 * 4
        assert 0 <= selected < 64 * 2048  # beside the rows: positions, masks and choices, some bytes for each sample


def loss_that_is_logged(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss = model(batch).sum()
    if not torch.isfinite(loss) or torch.isnan(loss):
        raise FloatingPointError
    return loss * (1 if loss.item() == loss.item() else 0)


def test_a_loop_that_reads_its_loss_is_traced_all_the_same_and_the_estimate_says_so() -> None:
    trace = traced(linear_workload(loss=loss_that_is_logged), CARD)
    assert trace.method == "fake-tensor trace"
    (note,) = trace.notes
    assert "tests/contract/test_estimators.py:" in note
    assert note.endswith("are taken as 1")


def test_an_optimizer_may_read_norms() -> None:
    trace = traced(linear_workload(optimizer=torch.optim.Adafactor), CARD)
    assert trace.method == "fake-tensor trace"
    found = estimate(trace, micro_batch_size=1, device=CARD)
    assert found.breakdown.optimizer_state == 2 * 512 * 4  # one row and one column stand for the second moment


class AsksForGpu(nn.Linear):
    """Takes another path on a GPU, and is compiled."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return super().forward(batch.to("cuda" if torch.cuda.is_available() else "cpu"))


def asking_and_compiled() -> nn.Module:
    model = AsksForGpu(512, 512, bias=False)
    model.compile()
    return model


def test_what_a_trace_does_not_follow_is_told() -> None:
    trace = traced(linear_workload(model=asking_and_compiled), CARD)
    assert len(trace.timelines) == 1
    compiled, asked = trace.notes
    assert compiled.startswith("compiled parts are counted by the code that Inductor writes")
    assert asked.startswith("code that checks for a GPU (tests/contract/test_estimators.py:")
    assert asked.endswith(") sees rtx-3090")


def convolving_with_search() -> nn.Module:
    torch.backends.cudnn.benchmark = True
    return nn.Sequential(nn.Unflatten(1, (2, 256)), nn.Conv1d(2, 2, 1), nn.Flatten())


def test_benchmark_mode_is_among_what_is_not_counted() -> None:
    trace = traced(linear_workload(model=convolving_with_search), CARD)
    assert any("benchmark mode" in each for each in trace.uncounted)


def test_in_benchmark_mode_the_cache_is_returned_before_each_first_call() -> None:
    trace = traced(linear_workload(model=convolving_with_search), CARD)
    (timeline,) = trace.timelines
    assert timeline.cache_returns.size == 2  # forward pass and gradient of the weight
    assert timeline.workspaces.blocks.size > 2  # of several steps


class TakesFours(nn.Linear):
    """Groups its samples by four, as some normalisations do."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return super().forward(batch.unflatten(0, (-1, 4)))


def test_a_model_that_takes_only_some_sizes_is_traced_at_multiples_of_the_recipes_own() -> None:
    workload = linear_workload(model=lambda: TakesFours(512, 512, bias=False))
    trace = traced(workload, CPU)
    assert (trace.method, trace.traced_batch_sizes) == ("fake-tensor trace", (4, 8))


def loss_that_checks_types(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    product = model(batch)
    assert product.dtype is torch.bfloat16
    assert nn.functional.layer_norm(product, (512,)).dtype is torch.float32
    assert (nn.functional.rms_norm(product, (512,)).dtype is torch.float32) is (
        release_of(torch.__version__) >= (2, 12)
    )
    assert product.softmax(-1).dtype is torch.float32
    assert product.exp().dtype is torch.float32
    assert nn.functional.gelu(product).dtype is torch.bfloat16
    return product.float().sum()


def test_a_card_casts_as_cuda_does_and_keeps_one_copy_of_each_weight() -> None:
    workload = linear_workload(
        model=lambda: nn.Linear(512, 512, bias=False), loss=lambda m, b: loss_that_checks_types(m, b) + m(b).sum()
    )
    trace = traced(workload, CARD, Recipe(micro_batch_size=4, precision=Precision.BF16))
    assert trace.method == "fake-tensor trace"
    timeline = trace.timelines[0]
    casts = timeline.operators == timeline.operator_names.index("aten._to_copy")
    assert (timeline.block_bytes(1)[casts] == MIB // 2).sum() == 3  # one in each step, of which the last is added


def loss_under_cuda_autocast(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cuda", dtype=torch.float16):
        result = model(batch.to("cuda:0"))
        assert result.dtype is torch.float16
        return (result * torch.ones(512, device="cuda")).sum()


def test_code_that_names_cuda_is_traced_for_a_card_without_one() -> None:
    workload = linear_workload(loss=loss_under_cuda_autocast)
    assert traced(workload, CARD).method == "fake-tensor trace"


def fails(*_: object) -> None:
    raise ZeroDivisionError("on purpose")


@pytest.mark.parametrize("part", ["model", "batch", "loss", "optimizer"])
def test_what_the_user_raises_is_told_with_the_users_traceback(part: str) -> None:
    with pytest.raises(WorkloadError, match=r"fails raised: ZeroDivisionError: on purpose") as caught:
        traced(linear_workload(**{part: fails}), CPU)
    assert "in fails" in caught.value.detail


@pytest.mark.parametrize(
    ("part", "function", "complaint"),
    [
        ("batch", lambda size: torch.zeros(4, 512), "ignores its argument"),
        ("batch", lambda size: size, "returned no tensor"),
        ("model", lambda: None, "returned a NoneType"),
        ("loss", lambda model, batch: model(batch), r"returned a tensor of shape \(2, 512\)"),
        (
            "loss",
            lambda model, batch: model(batch).sum().detach(),
            "require grad; return one number that depends on .* some of which",
        ),
        ("loss", lambda model, batch: 1.0, "returned a float"),
        ("optimizer", lambda parameters: [torch.optim.SGD(parameters)], "returned a list; return one torch.optim"),
        ("model", lambda: sys.exit("set DATA_ROOT"), "raised: SystemExit: set DATA_ROOT"),
    ],
    ids=["constant batch", "no tensors", "no module", "no scalar", "no grad", "no tensor", "two optimizers", "exit"],
)
def test_a_broken_contract_names_the_function_that_breaks_it(part: str, function: object, complaint: str) -> None:
    with pytest.raises(WorkloadError, match=complaint) as caught:
        traced(linear_workload(**{part: function}), CPU)
    assert "<lambda>" in str(caught.value)


def counted(log: Path, error: Exception) -> Callable[..., None]:
    def fails_and_counts(*_: object) -> None:
        with log.open("a") as file:
            file.write("called\n")
        raise error

    return fails_and_counts


@pytest.mark.parametrize(
    ("error", "own_size", "calls"),
    [(KeyError("labels"), 4, 1), (ValueError("not a multiple of 4"), 4, 2), (ValueError("never"), 2, 1)],
    ids=["of a name", "perhaps of the size", "at the recipe's own size"],
)
def test_an_error_of_the_users_own_is_met_once_and_once_more_only_at_another_size(
    tmp_path: Path, error: Exception, own_size: int, calls: int
) -> None:
    log = tmp_path / "log"
    with pytest.raises(WorkloadError) as caught:
        traced(linear_workload(loss=counted(log, error)), CPU, Recipe(micro_batch_size=own_size))
    assert len(log.read_text().splitlines()) == calls
    assert caught.value.where is not None
    assert caught.value.where.startswith("tests/contract/test_estimators.py:")


def loss_without_end(*_: object) -> None:
    while True:
        time.sleep(0.01)


def test_a_trace_without_end_is_stopped_and_says_how_to_give_it_more_time() -> None:
    workload = linear_workload(loss=loss_without_end)
    with pytest.raises(TraceError, match=r"stopped after 2 s; .*--trace-limit 8 gives it more time") as caught:
        traced(workload, CPU, Recipe(micro_batch_size=2), limit_s=2)
    assert "most recent call first" in caught.value.detail


def test_a_trace_that_takes_too_much_memory_is_stopped() -> None:
    watch = tracing._Watch(limit_s=60, limit_bytes=1)
    reason = watch.find_reason_to_stop(os.getpid(), 1.0)
    assert reason is not None
    assert "of resident memory" in reason
    assert "need not be computed" in str(watch.hint)


def test_no_time_at_all_is_refused() -> None:
    with pytest.raises(UsageError, match="trace-limit 0 must be more than 0 seconds"):
        traced(linear_workload(), CPU, Recipe(micro_batch_size=2), limit_s=0)


@pytest.fixture
def no_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out cuBLAS's workspace: larger than small models, and from torch 2.15 on not there in every phase."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")


@pytest.mark.usefixtures("no_workspace")
def test_a_fused_optimizer_spares_the_copies_of_a_multi_tensor_step() -> None:
    traces = [
        traced(linear_workload(), CARD, Recipe(micro_batch_size=4), fused_optimizer=fused) for fused in (False, True)
    ]
    plain, spared = (estimate(each, micro_batch_size=1, device=CARD) for each in traces)
    assert (plain.peak_phase, spared.peak_phase) == (Phase.OPTIMIZER_STEP, Phase.BACKWARD)
    assert plain.peak_allocated_bytes > spared.peak_allocated_bytes
    assert spared.breakdown.optimizer_state == 2 * MIB + 4  # the step counter is on the card then


@pytest.mark.usefixtures("no_workspace")
@pytest.mark.parametrize(
    ("kind", "by_default", "rate"),
    [
        (torch.optim.Adafactor, False, 1e-3),
        (torch.optim.RMSprop, True, 1e-3),
        (torch.optim.AdamW, False, torch.tensor(1e-3)),
    ],
    ids=["Adafactor", "RMSprop", "AdamW with its rate in a tensor"],
)
def test_an_optimizer_steps_as_it_would_by_default_for_parameters_on_a_card(
    kind: type, by_default: bool, rate: Any
) -> None:
    def peak(rate: Any, **settings: bool) -> int:
        workload = linear_workload(
            model=lambda: nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(8))),
            optimizer=lambda parameters: kind(parameters, lr=rate, **settings),
        )
        trace = traced(workload, CARD, Recipe(micro_batch_size=2))
        return estimate(trace, micro_batch_size=2, device=CARD).peak_allocated_bytes

    assert peak(1e-3, foreach=True) > peak(1e-3, foreach=False)
    assert peak(rate) == peak(rate, foreach=by_default)


def test_an_optimizer_without_a_fused_step_says_so() -> None:
    workload = linear_workload(optimizer=torch.optim.RMSprop)
    with pytest.raises(WorkloadError, match="RMSprop has no fused implementation"):
        traced(workload, CARD, Recipe(micro_batch_size=2), fused_optimizer=True)


def test_gradients_and_optimizer_state_are_held_by_the_module_of_their_parameter() -> None:
    workload = linear_workload(model=lambda: nn.Sequential(nn.Linear(512, 512, bias=False)))
    trace = traced(workload, CARD, Recipe(micro_batch_size=2))
    shares = estimate(trace, micro_batch_size=1, device=CARD).top_modules
    held = {each.name: each.held_bytes for each in shares}
    assert held["0"] >= 4 * MIB


def test_a_kernel_that_nothing_counts_is_named_with_its_calls_in_a_step() -> None:
    workload = linear_workload(loss=lambda model, batch: torch.unfold_copy(model(batch), 0, 2, 2).sum())
    recipe = Recipe(micro_batch_size=4, accumulation_steps=2)
    found = estimate(traced(workload, CARD, recipe), micro_batch_size=4, device=CARD)
    assert found.uncounted == ("what these kernels take inside: aten.unfold_copy (2 calls)",)


def test_data_parallel_training_keeps_every_gradient_a_second_time() -> None:
    recipe = Recipe(micro_batch_size=4, world_size=8)
    found = estimate(traced(linear_workload(), CARD, recipe), micro_batch_size=4, device=CARD)
    assert found.breakdown.gradients == 2 * MIB
    assert found.uncounted == ("NCCL's buffers for sending gradients",)


class AttendsToLines(nn.Linear):
    """Attends within samples of unlike lengths, 8 heads of 64 numbers each."""

    def forward(self, lines: torch.Tensor) -> torch.Tensor:
        heads = super().forward(lines).unflatten(-1, [8, 64]).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(-2)


def loss_of_nested_lines(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    lines = torch.nested.nested_tensor([each.expand(8, 512) for each in batch], layout=torch.jagged)
    return model(lines).values().square().mean()


def test_attention_to_nested_tensors_is_computed_on_the_cpu_and_told_of() -> None:
    found = traced(linear_workload(model=lambda: AttendsToLines(512, 512), loss=loss_of_nested_lines), CPU)
    assert found.method.startswith("real CPU run")
    (told,) = found.uncounted
    assert told.startswith("what these kernels take inside: operators on nested tensors (")


def test_attention_to_nested_tensors_runs_the_cards_kernel() -> None:
    found = traced(linear_workload(model=lambda: AttendsToLines(512, 512), loss=loss_of_nested_lines), CARD)
    assert found.method == "fake-tensor trace"
    assert "aten._efficient_attention_forward" in found.timelines[0].operator_names
    assert found.uncounted == ()


def loss_by_a_kernel_of_its_own(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    if not hasattr(torch.ops.memplan_lines, "shifted"):
        torch.library.define("memplan_lines::shifted", "(Tensor x) -> Tensor")
        torch.library.impl("memplan_lines::shifted", "default", lambda x: x + 1)
    with torch.no_grad():
        target = torch.ops.memplan_lines.shifted(batch)
    return (model(batch) - target).square().mean()


@pytest.mark.parametrize("device", [CPU, CARD], ids=["cpu", "card"])
def test_kernels_of_other_libraries_are_told_of(device: DeviceSpec) -> None:
    found = traced(linear_workload(loss=loss_by_a_kernel_of_its_own), device)
    assert found.uncounted == ("what these kernels take inside: memplan_lines.shifted (1 call)",)


def test_batches_that_vary_in_size_leave_room_for_each_other() -> None:
    def samples(rows: int) -> Callable[[int], torch.Tensor]:
        return lambda size: torch.zeros(size, rows, 512)

    worst = linear_workload(batch=samples(1024))
    alternating = linear_workload(batch=samples(1024), typical_batch=samples(768))
    found = [
        estimate(traced(each, CARD, Recipe(micro_batch_size=16)), micro_batch_size=16, device=CARD)
        for each in (worst, alternating)
    ]
    # inputs, outputs and their gradients: blocks of 32 MiB, or 24
    assert found[1].peak_allocated_bytes == found[0].peak_allocated_bytes
    assert found[1].peak_reserved_bytes >= found[0].peak_reserved_bytes + 24 * MIB
    assert "typical and worst batches alternate" in " ".join(found[1].notes)


def test_of_samples_in_a_list_a_third_size_is_traced_at_the_same_time(tmp_path: Path) -> None:
    def loss(model: nn.Module, samples: list[torch.Tensor]) -> torch.Tensor:
        (tmp_path / f"{len(samples)} {os.getpid()}").touch()
        return torch.stack([model(each).sum() for each in samples]).sum()

    workload = linear_workload(batch=lambda size: [torch.zeros(8, 512) for _ in range(size)], loss=loss)
    trace = traced(workload, CARD, Recipe(micro_batch_size=2))
    processes = dict(each.name.split() for each in tmp_path.iterdir())
    assert tuple(map(int, sorted(processes))) == trace.traced_batch_sizes
    assert processes["2"] == processes["3"] != processes["5"]


def padded_workload(**options: Any) -> Workload:
    """Batches of 1 MiB a sample at most, padded to their largest."""
    batches = memplan.worst_batch(
        [torch.zeros(rows, 512) for rows in (512, 256, 128, 384, 320)],
        collate=lambda samples: torch.zeros(len(samples), max(each.shape[0] for each in samples), 512),
        size=len,
    )
    told = {"typical_batch": batches.typical, "sample_sizes": batches.sample_sizes}
    return linear_workload(batch=batches, **{**told, **options})


def test_where_sample_sizes_are_told_steps_on_drawn_batches_are_replayed() -> None:
    told, plain, recipe = padded_workload(), padded_workload(sample_sizes=None), Recipe(micro_batch_size=2)
    on_card = [estimate(traced(each, CARD, recipe), micro_batch_size=2, device=CARD) for each in (plain, told)]
    assert on_card[0].drawn is None
    assert on_card[1].drawn is not None
    assert replace(on_card[1], drawn=None) == on_card[0]
    assert estimate(traced(told, CPU, recipe), micro_batch_size=2, device=CPU).drawn is None


def test_samples_that_turn_out_alike_are_as_without_a_typical_batch() -> None:
    recipe = Recipe(micro_batch_size=2)
    told = linear_workload(typical_batch=lambda _: None, sample_sizes=lambda: [1.0, 1.0])
    found = [
        estimate(traced(each, CARD, recipe), micro_batch_size=2, device=CARD) for each in (told, linear_workload())
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("count", [None, 30])
def test_the_size_of_the_training_set_comes_with_the_trace(count: int | None) -> None:
    workload = linear_workload(training_samples=lambda: count)
    assert traced(workload, CARD, Recipe(micro_batch_size=2)).training_samples == count


@pytest.mark.parametrize("count", [0, 2.5, "30"])
def test_a_number_of_training_samples_that_is_none_is_refused(count: object) -> None:
    workload = linear_workload(training_samples=lambda: count)
    with pytest.raises(WorkloadError, match=f"training samples function .* returned {count!r}; return the number"):
        traced(workload, CARD, Recipe(micro_batch_size=2))


def test_where_the_cache_is_emptied_in_every_step_nothing_piles_up() -> None:
    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        torch.cuda.empty_cache()
        return model(batch).sum()

    trace = traced(padded_workload(loss=loss), CARD, Recipe(micro_batch_size=2))
    assert estimate(trace, micro_batch_size=2, device=CARD).drawn is None


@pytest.mark.parametrize(("is_late", "gradients"), [(False, 0), (True, MIB)], ids=["before", "after"])
def test_gradients_zeroed_after_the_forward_pass_live_beside_the_activations(is_late: bool, gradients: int) -> None:
    workload = linear_workload(zero_grad_before_backward=is_late)
    timeline = traced(workload, CARD).timelines[0]
    is_forward = timeline.event_phases == PHASES.index(Phase.FORWARD)
    live = live_blocks_at(timeline, int(np.flatnonzero(is_forward & timeline.event_allocates)[-1]))
    assert component_bytes(timeline, live, timeline.block_bytes(4))[Component.GRADIENTS] == gradients


def test_where_the_smallest_batch_takes_a_path_of_its_own_two_larger_ones_are_generalised() -> None:
    workload = linear_workload(loss=lambda model, batch: model(batch)[1:].T.reshape(-1).square().sum())
    trace = traced(workload, CARD)
    assert (len(trace.timelines), trace.traced_batch_sizes) == (1, (3, 5))  # of two samples, one row needs no copy


class ConvertsItself(nn.Linear):
    """Makes sure of its type in every forward pass, as routers of experts do."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.to(torch.float32)
        return super().forward(batch)


def test_a_module_may_convert_itself_in_its_forward_pass() -> None:
    workload = linear_workload(model=lambda: ConvertsItself(512, 512, bias=False))
    trace = traced(workload, CARD)
    assert trace.method == "fake-tensor trace"
    assert estimate(trace, micro_batch_size=4, device=CARD).breakdown.parameters == MIB


def sharded_over(world_size: int, device: DeviceSpec, **changes: object) -> StepTrace:
    """Two bias-free layers of 512 x 512, each of which is gathered for itself."""

    def shard(model: nn.Sequential, _: Recipe) -> None:
        for layer in model:
            fully_shard(layer)
        fully_shard(model)

    layers = {"model": lambda: nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(2))), "shard": shard}
    recipe = replace(FOUR_SAMPLES, world_size=world_size)
    return traced(linear_workload(**{**layers, **changes}), device, recipe)


@DEVICES
def test_of_a_sharded_model_a_replica_holds_its_shards_and_what_is_gathered(device: DeviceSpec) -> None:
    small, large = (
        estimate(sharded_over(4, device), micro_batch_size=size, device=device).breakdown for size in (4, 8192)
    )
    # a quarter of 2 MiB; at the peak in the forward pass one layer of 1 MiB is gathered beside it
    assert (small.optimizer_state // MIB, large.parameters) == (1, MIB // 2 + MIB)
    assert large.gradients == 0


def test_what_fsdp_sends_and_receives_lies_on_streams_of_its_own() -> None:
    (timeline,) = sharded_over(4, CARD).timelines
    found = {
        (timeline.operator_names[timeline.operators[block]], int(timeline.block_bytes(4)[block]), stream)
        for block, stream in timeline.side_streams.items()
    }
    # what is gathered of a layer, and the quarter of its gradient that is received
    assert found == {("aten.empty", MIB, 1), ("aten.empty", MIB // 4, 2)}


def test_more_replicas_hold_less_each() -> None:
    peaks = [
        estimate(sharded_over(size, CARD), micro_batch_size=4, device=CARD).peak_allocated_bytes for size in (2, 4, 8)
    ]
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == 3


def test_meshes_lie_where_the_trace_is_whatever_they_are_asked_for() -> None:
    def shard(model: nn.Sequential, _: Recipe) -> None:
        mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))
        fully_shard(model, mesh=mesh)

    found = estimate(sharded_over(4, CARD, shard=shard), micro_batch_size=4, device=CARD)
    assert found.breakdown.optimizer_state == 2 * MIB  # halves of both layers, twice
    assert found.notes == ()


@DEVICES
def test_a_model_without_memory_is_sharded_as_one_with_it(device: DeviceSpec) -> None:
    def on_meta_device() -> nn.Module:
        with torch.device("meta"):
            return nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(2)))

    def shard(model: nn.Sequential, _: Recipe) -> None:
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        model.to_empty(device=torch.accelerator.current_accelerator(check_available=True) or "cpu")
        for layer in model:
            layer.reset_parameters()

    traces = sharded_over(4, device, model=on_meta_device, shard=shard), sharded_over(4, device)
    found, expected = (estimate(each, micro_batch_size=4, device=device).breakdown for each in traces)
    assert found == expected


@pytest.mark.parametrize("defers", [False, True])
def test_gradients_that_are_exchanged_once_a_step_are_whole_until_then(defers: bool) -> None:
    accumulating = replace(FOUR_SAMPLES, world_size=4, accumulation_steps=2)
    workload = linear_workload(shard=shards_whole, defers_gradient_sync=defers)
    found = estimate(traced(workload, CARD, accumulating), micro_batch_size=8192, device=CARD)
    # 1 MiB whole, or a quarter of it
    assert found.breakdown.gradients == (MIB if defers else MIB // 4)


def shards_whole(model: nn.Module, _: Recipe) -> None:
    fully_shard(model)


def test_the_shard_function_sets_the_types_of_a_precision_and_not_autocast() -> None:
    def shard(model: nn.Module, recipe: Recipe) -> None:
        assert recipe.precision is Precision.BF16
        fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        assert not torch.is_autocast_enabled("cpu")
        output = model(batch)
        assert output.dtype is torch.bfloat16
        return output.sum()

    recipe = replace(FOUR_SAMPLES, world_size=4, precision=Precision.BF16)
    workload = linear_workload(shard=shard, loss=loss)
    assert estimate(traced(workload, CARD, recipe), micro_batch_size=4, device=CARD).notes == ()


@pytest.mark.parametrize(("pin_memory", "states_bytes"), [(True, 0), (False, MIB)], ids=["pinned", "not pinned"])
def test_what_of_offloaded_shards_is_counted_is_said(pin_memory: bool, states_bytes: int) -> None:
    def shard(model: nn.Module, _: Recipe) -> None:
        fully_shard(model, offload_policy=CPUOffloadPolicy(pin_memory=pin_memory))

    trace = sharded_over(4, CARD, shard=shard)
    (note,) = trace.notes
    assert note.startswith("FSDP offloads shards to the host: their gradients are counted")
    found = estimate(trace, micro_batch_size=4, device=CARD).breakdown.optimizer_state
    assert (found, "without pin_memory" in note) == (states_bytes, True)


@pytest.mark.parametrize(
    ("world_size", "changes"), [(1, {}), (4, {"shard": lambda *_: None})], ids=["one replica", "nothing is sharded"]
)
def test_where_every_parameter_is_left_whole_a_note_says_so(world_size: int, changes: dict[str, object]) -> None:
    (note,) = sharded_over(world_size, CARD, **changes).notes
    assert note.startswith(f"the shard function leaves every parameter whole, with a world_size of {world_size};")


def test_the_collectives_of_sharded_models_take_nothing_but_nccls_buffers() -> None:
    assert sharded_over(4, CARD).uncounted == ("NCCL's buffers for sending gradients",)


def wrapped_over(world_size: int, device: DeviceSpec, **settings: Any) -> StepTrace:
    """The two layers, wrapped one by one and together by the first FSDP, which gathers none before it is needed."""

    def shard(model: nn.Sequential, _: Recipe) -> FullyShardedDataParallel:
        policy = ModuleWrapPolicy({nn.Linear})
        return FullyShardedDataParallel(model, auto_wrap_policy=policy, backward_prefetch=None, **settings)

    return sharded_over(world_size, device, shard=shard)


@DEVICES
@pytest.mark.parametrize("use_orig_params", [False, True])
def test_of_a_model_wrapped_by_the_first_fsdp_a_replica_holds_as_much(
    device: DeviceSpec, use_orig_params: bool
) -> None:
    small, large = (
        estimate(wrapped_over(4, device, use_orig_params=use_orig_params), micro_batch_size=size, device=device)
        for size in (4, 8192)
    )
    assert (small.breakdown.optimizer_state // MIB, large.breakdown.parameters) == (1, MIB // 2 + MIB)
    assert large.breakdown.gradients == 0
    assert small.notes == large.notes == ()


@pytest.mark.parametrize(
    ("strategy", "parameters_bytes"), [("FULL_SHARD", MIB // 2 + MIB), ("SHARD_GRAD_OP", MIB // 2 + 2 * MIB)]
)
def test_what_the_first_fsdp_keeps_gathered_follows_its_strategy(strategy: str, parameters_bytes: int) -> None:
    trace = wrapped_over(4, CARD, sharding_strategy=ShardingStrategy[strategy])
    found = estimate(trace, micro_batch_size=8192, device=CARD)
    assert found.breakdown.parameters == parameters_bytes


def test_the_first_fsdp_finds_out_which_frozen_parameters_it_still_holds_gathered() -> None:
    def shard(model: nn.Sequential, _: Recipe) -> FullyShardedDataParallel:
        model[0].requires_grad_(requires_grad=False)
        strategy = ShardingStrategy.SHARD_GRAD_OP
        policy = ModuleWrapPolicy({nn.Linear})
        return FullyShardedDataParallel(
            model, auto_wrap_policy=policy, sharding_strategy=strategy, use_orig_params=True
        )

    trace = sharded_over(4, CARD, shard=shard)
    assert estimate(trace, micro_batch_size=4, device=CARD).breakdown.optimizer_state == MIB // 2


def test_a_shard_function_that_wraps_its_model_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"shard function .*wraps returned a Sequential in place of the model"):
        sharded_over(4, CARD, shard=wraps)


def wraps(model: nn.Module, _: Recipe) -> nn.Module:
    return nn.Sequential(model)


@DEVICES
@pytest.mark.parametrize("after_step", [False, True])
def test_a_large_batch_that_is_evaluated_between_steps_is_the_peak(device: DeviceSpec, after_step: bool) -> None:
    evaluated = linear_workload(
        evaluate=lambda model, batch: model(batch),
        evaluation_batch=lambda _: torch.zeros(2048, 512),
        zero_grad_after_step=after_step,
    )
    trace = traced(evaluated, device)
    found = [estimate(trace, micro_batch_size=size, device=device) for size in (512, 1024)]
    assert found[0].peak_phase is Phase.EVALUATION
    # the second batch beside training's; its output and that of the first
    assert [each.breakdown.inputs for each in found] == [5 * MIB, 6 * MIB]
    assert [each.breakdown.temporaries for each in found] == [8 * MIB, 8 * MIB]
    assert found[0].breakdown.gradients == (0 if after_step else MIB)


@DEVICES
def test_evaluation_below_the_peak_of_a_step_takes_nothing(device: DeviceSpec) -> None:
    small = linear_workload(
        evaluate=lambda model, batch: model(batch).sum(), evaluation_batch=lambda _: torch.zeros(8, 512)
    )
    evaluated = estimate(traced(small, device), micro_batch_size=512, device=device)
    plain = estimate(linear_trace(device), micro_batch_size=512, device=device)
    assert (evaluated.peak_allocated_bytes, evaluated.peak_phase) == (plain.peak_allocated_bytes, plain.peak_phase)


def test_steps_after_an_evaluation_reuse_what_it_held() -> None:
    evaluated = linear_workload(
        evaluate=lambda model, batch: model(batch), evaluation_batch=lambda _: torch.zeros(20480, 512)
    )
    found = estimate(traced(evaluated, CARD), micro_batch_size=4, device=CARD)
    # the batch, its output and that of the one before, 40 MiB each, once however often it is evaluated
    assert 120 * MIB <= found.peak_reserved_bytes < 160 * MIB


@DEVICES
@pytest.mark.parametrize("part", ["evaluate", "evaluation_batch"])
def test_evaluation_that_fails_is_left_out_and_the_note_says_why(device: DeviceSpec, part: str) -> None:
    def fails(*_: object) -> None:
        raise ValueError("no validation set")

    functions = {"evaluate": lambda model, batch: model(batch), "evaluation_batch": lambda _: torch.zeros(8, 512)}
    found = estimate(traced(linear_workload(**{**functions, part: fails}), device), micro_batch_size=9, device=device)
    plain = estimate(linear_trace(device), micro_batch_size=9, device=device)
    (told,) = found.notes
    assert told.startswith("evaluation is not counted, since it cannot be traced (")
    assert "raised: ValueError: no validation set)" in told
    assert found.peak_allocated_bytes == plain.peak_allocated_bytes


def test_values_that_evaluation_reads_are_presumed() -> None:
    read = linear_workload(evaluate=lambda model, batch: model(batch).argmax(1).tolist())
    found = estimate(traced(read, CARD), micro_batch_size=9, device=CARD)
    (told,) = found.notes
    assert "evaluation is not counted" not in told


@DEVICES
def test_values_of_the_batch_that_is_evaluated_are_known(device: DeviceSpec) -> None:
    def evaluated(_: int) -> dict[str, torch.Tensor]:
        return {"rows": torch.zeros(2048, 512), "is_kept": torch.arange(2048) < 1024}

    def evaluate(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if batch["is_kept"].all():
            raise AssertionError("half of the rows are kept")
        return model(batch["rows"][batch["is_kept"]])

    found = estimate(
        traced(linear_workload(evaluate=evaluate, evaluation_batch=evaluated), device),
        micro_batch_size=512,
        device=device,
    )
    assert (found.notes, found.peak_phase) == ((), Phase.EVALUATION)
    # 4 MiB of rows beside training's; the half that is kept, its output and that of the batch before, 2 MiB each
    assert found.breakdown.inputs == 5 * MIB + 2048
    assert found.breakdown.temporaries == pytest.approx(6 * MIB, abs=0.1 * MIB)


@DEVICES
@pytest.mark.parametrize(("share_hidden", "temporaries_mib"), [(None, 28), (0.5, 18)])
def test_layers_of_transformers_evaluate_on_their_fast_path(
    device: DeviceSpec, share_hidden: float | None, temporaries_mib: int
) -> None:
    def evaluate(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        hidden = None if share_hidden is None else torch.arange(256).expand(8, 256) >= (1 - share_hidden) * 256
        return model(batch, src_key_padding_mask=hidden)

    encoder = linear_workload(
        model=lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 4, 2048, batch_first=True), 1),
        batch=lambda size: torch.zeros(size, 4, 512),
        evaluate=evaluate,
        evaluation_batch=lambda _: torch.zeros(8, 256, 512),
    )
    found = estimate(traced(encoder, device), micro_batch_size=4, device=device)
    assert (found.notes, found.peak_phase) == ((), Phase.EVALUATION)
    # of 4 MiB each: what is widened to four times as much, what comes of it and is added, the output of the batch
    # before; of the half that is not hidden also the input
    assert found.breakdown.temporaries == pytest.approx(temporaries_mib * MIB, abs=0.2 * MIB)
