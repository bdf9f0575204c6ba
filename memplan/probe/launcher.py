"""The parent side of one live trial: start the child, watch it, and turn every ending into an outcome."""

from __future__ import annotations

import math
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.cards import DeviceKind
from memplan.children import ChildEnding, run_child
from memplan.probe.oom_evidence import count_oom_kills
from memplan.probe.process_tree import ProcessTree
from memplan.probe.trials import (
    LIMITED_PHASES,
    PROFILER_ALLOWANCE_BYTES,
    TrialPhase,
    TrialProgress,
    TrialReadings,
    TrialRequest,
    TrialVerdict,
)
from memplan.results import Measurement, Outcome, OutcomeKind
from memplan.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

WORKER_MODULE = "memplan.probe.worker"
_NEAR_BUDGET_SHARE = 0.9
_QUIET = {"KINETO_LOG_LEVEL": "99"}  # the profiler's own start and stop messages are no part of a trial's output


def run_trial(request: TrialRequest, *, on_progress: Callable[[TrialProgress], None] | None = None) -> Outcome:
    """Run one recipe in a child process and say how it ended; a failing trial is an outcome, not an exception.

    Args:
        request: what to run and the limits it is held to.
        on_progress: called in this process as the child enters phases and starts steps.

    Raises:
        ChildError: the child process could not be started.
    """
    watch = _Watch(request, on_progress)
    kills_before = count_oom_kills()
    ending = run_child(
        WORKER_MODULE, request, on_message=watch.hear, watch=watch.find_reason_to_stop, environment=_QUIET
    )
    kills_after = count_oom_kills()
    killed_by_kernel = None not in (kills_before, kills_after) and kills_before != kills_after
    verdict = watch.verdict or _verdict_of(request, ending, watch, killed_by_kernel=killed_by_kernel)
    return Outcome(
        kind=verdict.kind,
        evidence=verdict.evidence,
        duration_s=ending.duration_s,
        measurement=_measurement_in(ending),
        log_tail=ending.log_tail,
    )


class _Watch:
    """Follows the child's progress and finds reasons to stop it: time, a slow step, or memory above the budget."""

    def __init__(self, request: TrialRequest, on_progress: Callable[[TrialProgress], None] | None) -> None:
        self.verdict: TrialVerdict | None = None
        self.largest_resident_bytes = 0
        self._tree = ProcessTree()
        self._request = request
        self._on_progress = on_progress
        self._progress: TrialProgress | None = None
        self._has_last_word = False
        self._since = time.monotonic()

    def hear(self, message: object) -> None:
        if isinstance(message, TrialProgress):
            self._progress = message
            self._since = time.monotonic()
            if self._on_progress is not None:
                self._on_progress(message)
        else:
            self._has_last_word = True

    def find_reason_to_stop(self, pid: int, age_s: float) -> str | None:
        if self._has_last_word:
            return None
        self.verdict = self._over_time(age_s) or self._over_step_limit() or self._over_budget(pid)
        return self.verdict.evidence if self.verdict else None

    def _over_time(self, age_s: float) -> TrialVerdict | None:
        limit_s = self._request.time_limit_s
        if age_s <= limit_s:
            return None
        evidence = f"still {self._doing()} after {age_s:.0f} s (limit {limit_s:.0f} s)"
        return TrialVerdict(kind=OutcomeKind.TIMEOUT, evidence=evidence)

    def _doing(self) -> str:
        if self._progress is None:
            return str(TrialPhase.STARTING)
        step = f", step {self._progress.step} of {self._progress.step_count}" if self._progress.step else ""
        return f"{self._progress.phase}{step}"

    def _over_step_limit(self) -> TrialVerdict | None:
        limit_s, progress = self._request.step_limit_s, self._progress
        if limit_s is None or progress is None or progress.phase not in LIMITED_PHASES:
            return None
        running_s = time.monotonic() - self._since
        if running_s <= limit_s:
            return None
        reference_s = self._request.reference_step_s
        reference = f"fp32: {reference_s:.1f} s" if reference_s is not None else f"limit {limit_s:.0f} s"
        evidence = f"step {progress.step} still running after {running_s:.0f} s ({reference})"
        return TrialVerdict(kind=OutcomeKind.TIMEOUT, evidence=evidence)

    def _over_budget(self, pid: int) -> TrialVerdict | None:
        if self._request.device.kind is not DeviceKind.CPU:
            return None
        resident_bytes = self._tree.resident_bytes(pid)
        attributing = self._progress is not None and self._progress.phase is TrialPhase.ATTRIBUTING
        allowed_bytes = self._request.budget_bytes + (PROFILER_ALLOWANCE_BYTES if attributing else 0)
        self.largest_resident_bytes = max(self.largest_resident_bytes, resident_bytes)
        if resident_bytes <= allowed_bytes:
            return None
        evidence = f"stopped at {format_bytes(resident_bytes)} resident, above its {format_bytes(allowed_bytes)}"
        return TrialVerdict(kind=OutcomeKind.HOST_OUT_OF_MEMORY, evidence=evidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LastWord:
    measurement: Measurement | None
    failure: TrialVerdict | None


def _last_word(ending: ChildEnding) -> _LastWord:
    last = ending.messages[-1] if ending.messages else None
    return _LastWord(
        measurement=last.measurement if isinstance(last, TrialReadings) else None,
        failure=last if isinstance(last, TrialVerdict) else None,
    )


def _measurement_in(ending: ChildEnding) -> Measurement | None:
    return _last_word(ending).measurement


def _verdict_of(request: TrialRequest, ending: ChildEnding, watch: _Watch, *, killed_by_kernel: bool) -> TrialVerdict:
    word = _last_word(ending)
    if word.failure is not None:
        return word.failure
    if word.measurement is not None:
        return judge_measurement(word.measurement, request)
    return judge_silence(
        request,
        ending,
        largest_resident_bytes=watch.largest_resident_bytes,
        killed_by_kernel=killed_by_kernel,
    )


def judge_measurement(measurement: Measurement, request: TrialRequest) -> TrialVerdict:
    """Say what a trial that completed its steps amounts to; only ``FITS`` is a success."""
    on_cpu = request.device.kind is DeviceKind.CPU
    peak_bytes, budget_bytes = measurement.peak_device_bytes, request.budget_bytes
    used = f"{format_bytes(peak_bytes)} of {format_bytes(budget_bytes)}"
    timed = measurement.losses[request.warmup_steps :]
    if peak_bytes > budget_bytes:
        kind = OutcomeKind.HOST_OUT_OF_MEMORY if on_cpu else OutcomeKind.DEVICE_OUT_OF_MEMORY
        return TrialVerdict(kind=kind, evidence=f"ran, but its peak of {used} is above the budget")
    if measurement.alloc_retries:
        evidence = f"the allocator ran out and freed its cache {measurement.alloc_retries} times at {used}"
        return TrialVerdict(kind=OutcomeKind.ALLOCATOR_RETRIES, evidence=evidence)
    if not all(math.isfinite(loss) for loss in timed):
        evidence = f"losses {', '.join(f'{loss:.4g}' for loss in measurement.losses)}"
        return TrialVerdict(kind=OutcomeKind.NON_FINITE_LOSS, evidence=evidence)
    return TrialVerdict(kind=OutcomeKind.FITS, evidence=f"{len(measurement.losses)} steps, peak {used}")


def judge_silence(
    request: TrialRequest, ending: ChildEnding, *, largest_resident_bytes: int, killed_by_kernel: bool
) -> TrialVerdict:
    """Judge a child that ended without a last word.

    Args:
        request: what was asked for.
        ending: how the process ended.
        largest_resident_bytes: the most that was seen of it and its descendants.
        killed_by_kernel: whether the kernel killed a process for want of memory meanwhile.
    """
    if ending.return_code >= 0:
        evidence = f"the process ended with exit status {ending.return_code} in the middle of the trial"
        return TrialVerdict(kind=OutcomeKind.CRASH, evidence=evidence)
    name = signal.Signals(-ending.return_code).name
    resident = f"last seen at {format_bytes(largest_resident_bytes)} resident"
    if ending.return_code == -signal.SIGKILL and killed_by_kernel:
        evidence = f"killed by the kernel for want of memory (its oom_kill counter rose); {resident}"
        return TrialVerdict(kind=OutcomeKind.HOST_OUT_OF_MEMORY, evidence=evidence)
    near_budget = largest_resident_bytes >= _NEAR_BUDGET_SHARE * request.budget_bytes
    if ending.return_code in (-signal.SIGKILL, -signal.SIGABRT) and near_budget:
        evidence = f"ended by {name} near its budget of {format_bytes(request.budget_bytes)}; {resident}"
        return TrialVerdict(kind=OutcomeKind.HOST_OUT_OF_MEMORY, evidence=evidence)
    return TrialVerdict(kind=OutcomeKind.CRASH, evidence=f"the process was ended by {name}")
