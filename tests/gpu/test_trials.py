"""Live trials on a card that is present: readings that agree with each other, and real ends for want of memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from memplan.devices.resolving import resolve_device
from memplan.estimators import estimate, trace_step
from memplan.probe.launcher import run_trial, trial_template
from memplan.probe.trials import TrialRequest
from memplan.recipe import Recipe
from memplan.results import Outcome, OutcomeKind
from memplan.units import GIB, MIB
from tests.making import command, reference

if TYPE_CHECKING:
    from memplan.children import Template
    from memplan.workload import TrainingCommand, WorkloadSource

pytestmark = pytest.mark.gpu
WORKLOADS = Path(__file__).parents[1] / "contract"
LIMIT_S = 60.0  # these steps take milliseconds: one that hangs fails with the stacks of its threads


def end_of(
    function: str,
    *,
    budget_bytes: int | None = None,
    config: dict[str, int] | None = None,
    template: Template | None = None,
    **knobs: object,
) -> Outcome:
    source = reference(f"trial_workloads:{function}", WORKLOADS, **(config or {}))
    return run_trial(request(source, budget_bytes, **knobs), template=template)


def request(source: WorkloadSource, budget_bytes: int | None = None, **knobs: object) -> TrialRequest:
    device = resolve_device("cuda:0")
    return TrialRequest(
        source=source,
        recipe=Recipe(**{"micro_batch_size": 8, **knobs}),
        device=device,
        budget_bytes=budget_bytes or device.total_bytes,
        build_limit_s=LIMIT_S,
        time_limit_s=LIMIT_S,
    )


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16", "bf16-true"])
def test_the_four_peaks_rise_from_tensors_to_the_card(precision: str) -> None:
    outcome = end_of("fits", precision=precision)
    assert outcome.kind is OutcomeKind.FITS, outcome
    measured = outcome.measurement
    assert measured is not None
    assert measured.peak_reserved_bytes is not None
    assert measured.peak_allocated_bytes <= measured.peak_reserved_bytes < measured.peak_process_bytes
    assert measured.peak_process_bytes <= measured.peak_device_bytes
    assert measured.breakdown.total_bytes == measured.peak_process_bytes
    assert measured.breakdown.parameters == (MIB // 2 if precision == "bf16-true" else MIB)
    assert measured.breakdown.context > 50 * MIB
    assert min(measured.breakdown.values()) >= 0
    assert measured.alloc_retries == 0
    assert (measured.loss_scale is not None) == (precision == "fp16")


@pytest.mark.parametrize("name", ["sharded", "wrapped_by_the_first_fsdp"])
def test_one_replica_of_a_sharded_model_takes_what_was_estimated(name: str) -> None:
    outcome = end_of(name, micro_batch_size=512, world_size=4)
    assert outcome.measurement is not None, outcome
    recipe = Recipe(micro_batch_size=512, world_size=4)
    device = resolve_device("cuda:0")
    trace = trace_step(reference(f"trial_workloads:{name}", WORKLOADS), recipe, device)
    predicted = estimate(trace, micro_batch_size=512, device=device)
    assert outcome.measurement.peak_allocated_bytes == pytest.approx(predicted.peak_allocated_bytes, rel=0.01)


def test_a_tensor_above_the_cap_ends_as_out_of_memory_of_the_device() -> None:
    outcome = end_of("needs_two_gib_on_the_device", budget_bytes=2 * GIB)
    assert outcome.kind in (OutcomeKind.DEVICE_OUT_OF_MEMORY, OutcomeKind.ALLOCATOR_RETRIES), outcome


def test_the_same_tensor_fits_under_a_larger_cap() -> None:
    outcome = end_of("needs_two_gib_on_the_device", budget_bytes=8 * GIB)
    assert outcome.kind is OutcomeKind.FITS, outcome


@pytest.mark.parametrize("cap_gib", [8, 16, 24, 40, 80])
def test_a_cap_stands_for_a_smaller_card(cap_gib: int) -> None:
    if resolve_device("cuda:0").total_bytes < (cap_gib + 2) * GIB:
        pytest.skip("the card is smaller than that")
    full = end_of("fills_the_device", budget_bytes=cap_gib * GIB, config={"gib": cap_gib})
    assert full.kind is OutcomeKind.DEVICE_OUT_OF_MEMORY, full
    half = end_of("fills_the_device", budget_bytes=cap_gib * GIB, config={"gib": cap_gib // 2})
    assert half.kind is OutcomeKind.FITS, half
    assert half.measurement is not None
    assert cap_gib // 2 * GIB < half.measurement.peak_allocated_bytes < cap_gib * GIB


def test_forks_of_one_template_may_use_the_card_and_read_the_same() -> None:
    with trial_template() as template:
        measured = [end_of("fits", template=template).measurement for _ in range(2)]
        assert template.is_running  # no fork was refused
    peaks = {(each.peak_allocated_bytes, each.peak_reserved_bytes) for each in measured if each is not None}
    assert len(peaks) == 1
    assert None not in measured


def test_a_training_without_a_matrix_product_has_no_workspace() -> None:
    outcome = end_of("multiplies_elementwise")
    assert outcome.measurement is not None, outcome
    assert outcome.measurement.breakdown.workspaces == 0
    assert outcome.measurement.peak_allocated_bytes < 16 * MIB


SCRIPT = """
import sys, torch
net = torch.nn.Linear(512, 512, bias=False, device="cuda")
optimizer = torch.optim.Adam(net.parameters())
for _ in range(99):
    optimizer.zero_grad()
    net(torch.ones(int(sys.argv[1]), 512, device="cuda")).square().mean().backward()
    optimizer.step()
"""


def script_in(folder: Path) -> TrainingCommand:
    (folder / "train.py").write_text(SCRIPT)
    return command(f"{sys.executable} train.py {{micro_batch_size}}", folder, steps=6)


def test_a_training_command_is_read_on_the_card_like_a_workload(tmp_path: Path) -> None:
    outcome = run_trial(request(script_in(tmp_path)))
    assert outcome.kind is OutcomeKind.FITS, outcome
    measured = outcome.measurement
    assert measured is not None
    assert (measured.breakdown.parameters, measured.breakdown.optimizer_state) == (MIB, 2 * MIB)
    assert measured.breakdown.context > 50 * MIB
    assert min(measured.breakdown.values()) >= 0


def test_a_training_command_is_held_to_the_budget(tmp_path: Path) -> None:
    outcome = run_trial(request(script_in(tmp_path), 2 * GIB, micro_batch_size=2 << 20))  # 4 GiB of input
    assert outcome.kind is OutcomeKind.DEVICE_OUT_OF_MEMORY, outcome


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_estimate_of_a_small_step_is_what_the_card_takes(precision: str) -> None:
    wanted = request(reference("trial_workloads:fits", WORKLOADS), precision=precision)
    measured = run_trial(wanted).measurement
    assert measured is not None
    assert measured.peak_reserved_bytes is not None
    trace = trace_step(wanted.source, wanted.recipe, wanted.device)
    estimated = estimate(trace, micro_batch_size=wanted.recipe.micro_batch_size, device=wanted.device)
    assert estimated.peak_allocated_bytes == pytest.approx(measured.peak_allocated_bytes, rel=0.03)
    assert estimated.peak_reserved_bytes == pytest.approx(measured.peak_reserved_bytes, rel=0.05)


def test_a_kernel_that_reads_beyond_its_tensor_is_no_want_of_memory() -> None:
    outcome = end_of("indexes_out_of_range")
    assert outcome.kind is OutcomeKind.KERNEL_FAILURE, outcome
