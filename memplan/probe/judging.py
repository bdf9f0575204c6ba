"""How a trial is judged: while it runs by its limits, later by its readings, or by its end without any. Pure."""

from __future__ import annotations

import math
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.devices.cards import DeviceKind
from memplan.probe.readings import NEAR_BUDGET_SHARE
from memplan.probe.trials import TrialVerdict
from memplan.results import OutcomeKind
from memplan.units import format_bytes

if TYPE_CHECKING:
    from memplan.children import ChildEnding
    from memplan.probe.trials import StepLimit, TrialReadings, TrialRequest
    from memplan.results import Measurement


def over_step_limit(
    limit: StepLimit | None, *, step: int, running_s: float, before_s: float | None = None
) -> TrialVerdict | None:
    """Report an optimizer step that takes longer than it may.

    Args:
        limit: of each step; None where there is none.
        step: number of the step that runs.
        running_s: wall time since it started.
        before_s: wall time of the step before it; None where that is not known.
    """
    if limit is None:
        return None
    if limit.slow_s is not None and before_s is not None and min(before_s, running_s) > limit.slow_s:
        evidence = (
            f"given up in step {step} after {running_s:.0f} s: the one before took {before_s:.1f} s ({_usual(limit)})"
        )
    elif limit.limit_s is not None and running_s > limit.limit_s:
        evidence = f"step {step} still running after {running_s:.0f} s ({_usual(limit)})"
    else:
        return None
    return TrialVerdict(kind=OutcomeKind.TIMEOUT, evidence=evidence)


def over_resident_limit(resident_bytes: int, limit_bytes: int) -> TrialVerdict | None:
    """Report a trial on the CPU whose processes hold more than they may together."""
    if resident_bytes <= limit_bytes:
        return None
    evidence = f"stopped at {format_bytes(resident_bytes)} resident, above its {format_bytes(limit_bytes)}"
    return TrialVerdict(kind=OutcomeKind.HOST_OUT_OF_MEMORY, evidence=evidence)


def _usual(limit: StepLimit) -> str:
    if limit.usual_s is not None:
        return f"{limit.usual_precision or 'usually'}: {limit.usual_s:.1f} s"
    return "no step is that slow" if limit.limit_s is None else f"limit {limit.limit_s:.0f} s"


def judge_readings(request: TrialRequest, readings: TrialReadings, ending: ChildEnding) -> TrialVerdict:
    """Judge a trial by its readings, and say so where they could not be attributed; that alone is no failure."""
    verdict = judge_measurement(readings.measurement, request)
    if readings.unattributed_because is None:
        return verdict
    reason = ending.stop_reason or readings.unattributed_because
    return replace(verdict, evidence=f"{verdict.evidence}; what the peak consists of is not known: {reason}")


def judge_measurement(measurement: Measurement, request: TrialRequest) -> TrialVerdict:
    """Judge a trial that completed its steps; only ``FITS`` is a success."""
    too_large = judge_memory(measurement, request)
    if too_large is not None:
        return too_large
    timed = measurement.losses[request.warmup_steps :]
    if not all(math.isfinite(loss) for loss in timed):
        evidence = f"losses {', '.join(f'{loss:.4g}' for loss in measurement.losses)}"
        return TrialVerdict(kind=OutcomeKind.NON_FINITE_LOSS, evidence=evidence)
    return fitting(len(measurement.losses), measurement, request)


def judge_memory(measurement: Measurement, request: TrialRequest) -> TrialVerdict | None:
    """Report a completed trial that was too large; None where it kept within its budget without a retry."""
    if measurement.peak_device_bytes > request.budget_bytes:
        on_cpu = request.device.kind is DeviceKind.CPU
        kind = OutcomeKind.HOST_OUT_OF_MEMORY if on_cpu else OutcomeKind.DEVICE_OUT_OF_MEMORY
        evidence = f"ran, but its peak of {_peak_text(measurement, request)} is above the budget"
        return TrialVerdict(kind=kind, evidence=evidence)
    if measurement.alloc_retries:
        times = f"{measurement.alloc_retries} times at {_peak_text(measurement, request)}"
        evidence = f"the allocator ran out and freed its cache {times}"
        return TrialVerdict(kind=OutcomeKind.ALLOCATOR_RETRIES, evidence=evidence)
    return None


def fitting(steps: int, measurement: Measurement, request: TrialRequest) -> TrialVerdict:
    """Say that a trial took its steps and kept within its budget."""
    return TrialVerdict(kind=OutcomeKind.FITS, evidence=f"{steps} steps, peak {_peak_text(measurement, request)}")


def _peak_text(measurement: Measurement, request: TrialRequest) -> str:
    return f"{format_bytes(measurement.peak_device_bytes)} of {format_bytes(request.budget_bytes)}"


def is_near_budget(resident_bytes: int, request: TrialRequest) -> bool:
    """Whether a resident set is so near the budget that a sudden end is for lack of memory; a card's is no measure."""
    return request.device.kind is DeviceKind.CPU and resident_bytes >= NEAR_BUDGET_SHARE * request.budget_bytes


def judge_silence(
    request: TrialRequest, ending: ChildEnding, *, largest_resident_bytes: int, killed_by_kernel: bool
) -> TrialVerdict:
    """Judge a child that ended without a verdict of its own.

    Args:
        request: what was asked for.
        ending: how the process ended.
        largest_resident_bytes: the most that was seen of it and its descendants.
        killed_by_kernel: whether the kernel killed a process for lack of memory meanwhile.
    """
    if ending.return_code >= 0:
        status = f"exit status {ending.return_code} in the middle of the trial"
        last_line = f"; its last line: {ending.last_line}" if ending.last_line else ""
        return TrialVerdict(kind=OutcomeKind.CRASH, evidence=f"the process ended with {status}{last_line}")
    verdict = judge_signal(
        signal.Signals(-ending.return_code),
        of="the process",
        is_near_budget=is_near_budget(largest_resident_bytes, request),
        killed_by_kernel=killed_by_kernel,
    )
    if verdict.kind is OutcomeKind.CRASH or not largest_resident_bytes:
        return verdict
    return replace(verdict, evidence=f"{verdict.evidence}; seen at {format_bytes(largest_resident_bytes)} resident")


def judge_signal(number: signal.Signals, *, of: str, is_near_budget: bool, killed_by_kernel: bool) -> TrialVerdict:
    """Judge a process that a signal ended.

    Args:
        number: the signal.
        of: what it ended, for the evidence.
        is_near_budget: whether it was seen near its budget.
        killed_by_kernel: whether the kernel killed a process for lack of memory meanwhile.
    """
    if number is signal.SIGKILL and killed_by_kernel:
        evidence = "killed by the kernel for want of memory (its oom_kill counter rose)"
        return TrialVerdict(kind=OutcomeKind.HOST_OUT_OF_MEMORY, evidence=evidence)
    if number in (signal.SIGKILL, signal.SIGABRT) and is_near_budget:
        return TrialVerdict(kind=OutcomeKind.HOST_OUT_OF_MEMORY, evidence=f"ended by {number.name} near its budget")
    return TrialVerdict(kind=OutcomeKind.CRASH, evidence=f"{of} was ended by {number.name}")
