"""How the parent judges a trial: by its limits, its readings or its silence."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from memplan.children import ChildEnding
from memplan.devices.cards import DeviceKind
from memplan.probe.judging import judge_measurement, judge_readings, judge_silence, over_resident_limit, over_step_limit
from memplan.probe.trials import StepLimit, TrialReadings, TrialRequest
from memplan.recipe import Precision
from memplan.results import OutcomeKind
from memplan.units import GIB, MIB
from tests.making import CARD, CPU, REQUEST, measurement


def request(kind: DeviceKind = DeviceKind.CPU) -> TrialRequest:
    return replace(REQUEST, device=CPU if kind is DeviceKind.CPU else CARD, warmup_steps=2)


def silence(return_code: int) -> ChildEnding:
    return ChildEnding(messages=(), return_code=return_code, stop_reason=None, log_tail="", duration_s=1.0)


def test_a_peak_within_the_budget_fits() -> None:
    verdict = judge_measurement(measurement(1000), request())
    assert verdict.kind is OutcomeKind.FITS
    assert verdict.evidence == "2 steps, peak 1000.0 MiB of 1000.0 MiB"


@pytest.mark.parametrize(
    ("device", "kind"),
    [(DeviceKind.CPU, OutcomeKind.HOST_OUT_OF_MEMORY), (DeviceKind.CUDA, OutcomeKind.DEVICE_OUT_OF_MEMORY)],
)
def test_a_peak_above_the_budget_is_out_of_memory_although_it_ran(device: DeviceKind, kind: OutcomeKind) -> None:
    assert judge_measurement(measurement(1001), request(device)).kind is kind


def test_a_trial_that_had_to_retry_allocations_is_too_large() -> None:
    verdict = judge_measurement(replace(measurement(900), alloc_retries=3), request(DeviceKind.CUDA))
    assert verdict.kind is OutcomeKind.ALLOCATOR_RETRIES
    assert verdict.kind.is_too_large
    assert "3 times" in verdict.evidence


def test_only_losses_of_timed_steps_need_be_finite() -> None:
    in_warm_up = measurement(900, losses=(float("nan"), 2.0, 1.0, 1.0, 1.0))
    in_a_timed_step = measurement(900, losses=(3.0, 2.0, 1.0, float("inf"), 1.0))
    assert judge_measurement(in_warm_up, request()).kind is OutcomeKind.FITS
    assert judge_measurement(in_a_timed_step, request()).kind is OutcomeKind.NON_FINITE_LOSS


@pytest.mark.parametrize("peak_mib", [1000, 1001])
def test_readings_that_were_not_attributed_are_judged_like_others(peak_mib: int) -> None:
    whole = TrialReadings(measurement=measurement(peak_mib))
    unattributed = replace(whole, unattributed_because="KeyError: 'lr'")
    expected = judge_readings(request(), whole, silence(0))
    verdict = judge_readings(request(), unattributed, silence(0))
    assert verdict.kind is expected.kind
    assert verdict.evidence == f"{expected.evidence}; what the peak consists of is not known: KeyError: 'lr'"


def test_what_the_parent_stopped_the_attributing_step_for_is_told() -> None:
    readings = TrialReadings(measurement=measurement(900), unattributed_because="it did not end")
    stopped = replace(silence(-signal.SIGKILL), stop_reason="still attributing after 9 s")
    assert judge_readings(request(), readings, stopped).evidence.endswith("not known: still attributing after 9 s")


def test_memory_counts_more_than_a_loss_that_is_not_finite() -> None:
    both = measurement(1001, losses=(1.0, 1.0, float("nan")))
    assert judge_measurement(both, request()).kind is OutcomeKind.HOST_OUT_OF_MEMORY


def test_a_kill_while_the_kernels_counter_rose_is_memory_of_the_host() -> None:
    verdict = judge_silence(request(), silence(-signal.SIGKILL), largest_resident_bytes=0, killed_by_kernel=True)
    assert verdict.kind is OutcomeKind.HOST_OUT_OF_MEMORY
    assert "oom_kill" in verdict.evidence
    assert "resident" not in verdict.evidence  # it was killed before it was looked at


def test_a_kill_from_outside_is_a_crash() -> None:
    verdict = judge_silence(
        request(), silence(-signal.SIGKILL), largest_resident_bytes=500 * MIB, killed_by_kernel=False
    )
    assert verdict.kind is OutcomeKind.CRASH


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_a_sudden_end_near_the_budget_is_memory_of_the_host(number: signal.Signals) -> None:
    verdict = judge_silence(request(), silence(-number), largest_resident_bytes=950 * MIB, killed_by_kernel=False)
    assert verdict.kind is OutcomeKind.HOST_OUT_OF_MEMORY
    assert "950.0 MiB" in verdict.evidence


def test_a_resident_set_is_not_held_against_the_budget_of_a_card() -> None:
    verdict = judge_silence(
        request(DeviceKind.CUDA), silence(-signal.SIGKILL), largest_resident_bytes=950 * MIB, killed_by_kernel=False
    )
    assert verdict.kind is OutcomeKind.CRASH


def test_a_segmentation_fault_is_a_crash_however_full_memory_is() -> None:
    verdict = judge_silence(
        request(), silence(-signal.SIGSEGV), largest_resident_bytes=999 * MIB, killed_by_kernel=True
    )
    assert verdict.kind is OutcomeKind.CRASH
    assert "SIGSEGV" in verdict.evidence


def test_an_exit_in_the_middle_is_a_crash_with_its_status() -> None:
    verdict = judge_silence(request(), silence(3), largest_resident_bytes=0, killed_by_kernel=False)
    assert verdict.kind is OutcomeKind.CRASH
    assert "exit status 3" in verdict.evidence


def test_a_process_that_gave_up_is_quoted_with_its_last_line() -> None:
    gave_up = replace(silence(1), log_tail="Traceback ...\nSyntaxError: invalid syntax\n\n")
    verdict = judge_silence(request(), gave_up, largest_resident_bytes=0, killed_by_kernel=False)
    assert verdict.kind is OutcomeKind.CRASH
    assert verdict.evidence.endswith(
        "exit status 1 in the middle of the trial; its last line: SyntaxError: invalid syntax"
    )


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (StepLimit(limit_s=10.0), "step 3 still running after 12 s (limit 10 s)"),
        (StepLimit(limit_s=10.0, usual_s=0.5), "step 3 still running after 12 s (usually: 0.5 s)"),
        (
            StepLimit(limit_s=10.0, usual_s=0.5, usual_precision=Precision.BF16),
            "step 3 still running after 12 s (bf16: 0.5 s)",
        ),
    ],
)
def test_a_step_is_stopped_beyond_its_limit_and_told_beside_what_the_limit_follows_from(
    limit: StepLimit, said: str
) -> None:
    assert over_step_limit(limit, step=3, running_s=10.0) is None
    verdict = over_step_limit(limit, step=3, running_s=12.0)
    assert verdict is not None
    assert (verdict.kind, verdict.evidence) == (OutcomeKind.TIMEOUT, said)


def test_two_steps_that_are_both_slow_are_enough_to_stop() -> None:
    limit = StepLimit(limit_s=10.0, usual_s=0.5, usual_precision=Precision.FP32, slow_s=2.0)
    assert over_step_limit(limit, step=1, running_s=3.0) is None
    assert over_step_limit(limit, step=2, running_s=2.0, before_s=3.0) is None
    assert over_step_limit(limit, step=2, running_s=3.0, before_s=2.0) is None
    verdict = over_step_limit(limit, step=2, running_s=2.1, before_s=3.0)
    assert verdict is not None
    assert verdict.kind is OutcomeKind.TIMEOUT
    assert verdict.evidence == "given up in step 2 after 2 s: the one before took 3.0 s (fp32: 0.5 s)"


def test_a_step_without_a_limit_may_take_any_time() -> None:
    assert over_step_limit(None, step=3, running_s=1e6) is None
    one_may_be_slow = StepLimit(limit_s=None, usual_s=0.5, slow_s=2.0)
    assert over_step_limit(one_may_be_slow, step=3, running_s=1e6, before_s=2.0) is None


def test_main_memory_counts_up_to_and_with_its_limit() -> None:
    assert over_resident_limit(2 * GIB, 2 * GIB) is None
    verdict = over_resident_limit(3 * GIB, 2 * GIB)
    assert verdict is not None
    assert verdict.kind is OutcomeKind.HOST_OUT_OF_MEMORY
    assert verdict.evidence == "stopped at 3.00 GiB resident, above its 2.00 GiB"
