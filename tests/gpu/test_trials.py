"""Live trials on a card that is present: readings that agree with each other, and real ends for want of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from memplan.devices import resolve_device
from memplan.probe import TrialRequest, run_trial
from memplan.recipe import Recipe
from memplan.results import Outcome, OutcomeKind
from memplan.units import GIB, MIB
from memplan.workload import WorkloadReference

pytestmark = pytest.mark.gpu
WORKLOADS = Path(__file__).parents[1] / "contract"


def end_of(
    function: str, *, budget_bytes: int | None = None, config: dict[str, int] | None = None, **knobs: object
) -> Outcome:
    device = resolve_device("cuda:0")
    return run_trial(
        TrialRequest(
            source=WorkloadReference(
                target=f"trial_workloads:{function}",
                config=config or {},
                config_path=None,
                search_path=(str(WORKLOADS),),
            ),
            recipe=Recipe(**{"micro_batch_size": 8, **knobs}),
            device=device,
            budget_bytes=budget_bytes or device.total_bytes,
        )
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


def test_a_kernel_that_reads_beyond_its_tensor_is_no_want_of_memory() -> None:
    outcome = end_of("indexes_out_of_range")
    assert outcome.kind is OutcomeKind.KERNEL_FAILURE, outcome
