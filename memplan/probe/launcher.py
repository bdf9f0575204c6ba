"""The parent side of one live trial: start the child, watch it, and turn every ending into an outcome."""

from __future__ import annotations

import math
import signal
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan.cards import DeviceKind
from memplan.children import ChildEnding, Template, run_child
from memplan.probe.commands.trial import run_command_trial
from memplan.probe.oom_evidence import count_oom_kills
from memplan.probe.process_tree import ProcessTree
from memplan.probe.trials import (
    LIMITED_PHASES,
    PROFILER_ALLOWANCE_BYTES,
    TRIAL_ENVIRONMENT,
    ForkRefused,
    TrialNotes,
    TrialPhase,
    TrialProgress,
    TrialReadings,
    TrialRequest,
    TrialVerdict,
)
from memplan.results import Measurement, Outcome, OutcomeKind
from memplan.units import format_bytes
from memplan.workload import TrainingCommand

if TYPE_CHECKING:
    from collections.abc import Callable

WORKER_MODULE = "memplan.probe.worker"
_NEAR_BUDGET_SHARE = 0.9
_QUOTED_CHARACTERS = 200


def trial_template() -> Template:
    """Return a template of trials: torch is loaded once, and each trial forked from there in milliseconds.

    Measured with torch 2.13 on two cores: 4.5 s for a trial of a small model started from nothing, 0.7 s forked; the
    process peaks of the two differ by less than 0.5 %, as much as two of a kind do. A process that runs one trial after
    another would save no more than that, and its peaks would carry what earlier trials left in the heap.
    """
    return Template(WORKER_MODULE)


def run_trial(
    request: TrialRequest,
    *,
    on_progress: Callable[[TrialProgress], None] | None = None,
    template: Template | None = None,
) -> Outcome:
    """Run one recipe in a child process and say how it ended; a failing trial is an outcome, not an exception.

    Args:
        request: what to run and the limits it is held to.
        on_progress: called in this process as the child enters phases and starts steps.
        template: made by :func:`trial_template`, forks the child; None starts it from nothing.

    Raises:
        ChildError: the child process could not be started.
    """
    if isinstance(request.source, TrainingCommand):
        return run_command_trial(request, request.source, on_progress=on_progress)
    attempt = _attempt(request, on_progress, template)
    if template is not None and attempt.failed_for_the_template:
        if not attempt.ending.lost_its_template:
            template.give_up()
        attempt = _attempt(request, on_progress, None)
    ending, readings = attempt.ending, _last_readings(attempt.ending)
    verdict = attempt.watch.verdict or _verdict_of(request, attempt)
    return Outcome(
        kind=verdict.kind,
        evidence=verdict.evidence,
        duration_s=ending.duration_s,
        measurement=readings.measurement if readings else None,
        log_tail=ending.log_tail,
        notes=next((each.notes for each in ending.messages if isinstance(each, TrialNotes)), ()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """One child process and how it ended."""

    watch: _Watch
    ending: ChildEnding
    killed_by_kernel: bool

    @property
    def failed_for_the_template(self) -> bool:
        """Whether it says nothing of the recipe: its process could not be a fork, or ended with its template."""
        refused = any(isinstance(each, ForkRefused) for each in self.ending.messages)
        return refused or self.ending.lost_its_template


def _attempt(
    request: TrialRequest, on_progress: Callable[[TrialProgress], None] | None, template: Template | None
) -> _Attempt:
    watch = _Watch(request, on_progress)
    kills_before = count_oom_kills()
    ending = run_child(
        WORKER_MODULE,
        request,
        on_message=watch.hear,
        watch=watch.find_reason_to_stop,
        environment=TRIAL_ENVIRONMENT,
        template=template,
    )
    kills_after = count_oom_kills()
    killed_by_kernel = None not in (kills_before, kills_after) and kills_before != kills_after
    return _Attempt(watch=watch, ending=ending, killed_by_kernel=killed_by_kernel)


class _Watch:
    """Follows the child's progress and finds reasons to stop it: time, a slow step, or memory above the budget."""

    def __init__(self, request: TrialRequest, on_progress: Callable[[TrialProgress], None] | None) -> None:
        self.verdict: TrialVerdict | None = None
        self.largest_resident_bytes = 0
        self._tree = ProcessTree()
        self._request = request
        self._on_progress = on_progress
        self._progress: TrialProgress | None = None
        self._has_verdict = False
        self._has_readings = False
        self._since = time.monotonic()
        self._stepping_since: float | None = None

    def hear(self, message: object) -> None:
        if isinstance(message, TrialProgress):
            self._progress = message
            self._since = time.monotonic()
            if message.step is not None and self._stepping_since is None:
                self._stepping_since = self._since
            if self._on_progress is not None:
                self._on_progress(message)
        self._has_verdict = self._has_verdict or isinstance(message, TrialVerdict)
        self._has_readings = self._has_readings or isinstance(message, TrialReadings)

    def find_reason_to_stop(self, pid: int, age_s: float) -> str | None:
        """Return why to stop; once there are readings, they are the verdict whatever comes after."""
        if self._has_verdict:
            return None
        if self._has_readings:
            stop = self._over_time(self._since) or self._over_budget(pid)
            return stop.evidence if stop else None
        if self._stepping_since is None:
            over_time = self._over(self._request.build_limit_s, age_s)
        else:
            over_time = self._over_time(self._stepping_since)
        self.verdict = over_time or self._over_step_limit() or self._over_budget(pid)
        return self.verdict.evidence if self.verdict else None

    def _over_time(self, since: float) -> TrialVerdict | None:
        return self._over(self._request.time_limit_s, time.monotonic() - since)

    def _over(self, limit_s: float, running_s: float) -> TrialVerdict | None:
        if running_s <= limit_s:
            return None
        evidence = f"still {self._doing()} after {running_s:.0f} s (limit {limit_s:.0f} s)"
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
        evidence = f"step {progress.step} still running after {running_s:.0f} s ({_usual(self._request, limit_s)})"
        return TrialVerdict(kind=OutcomeKind.TIMEOUT, evidence=evidence)

    def _over_budget(self, pid: int) -> TrialVerdict | None:
        if self._request.device.kind is not DeviceKind.CPU:
            return None
        resident_bytes = self._tree.resident_bytes(pid)
        allowed_bytes = self._request.budget_bytes + (PROFILER_ALLOWANCE_BYTES if self._has_readings else 0)
        self.largest_resident_bytes = max(self.largest_resident_bytes, resident_bytes)
        if resident_bytes <= allowed_bytes:
            return None
        evidence = f"stopped at {format_bytes(resident_bytes)} resident, above its {format_bytes(allowed_bytes)}"
        return TrialVerdict(kind=OutcomeKind.HOST_OUT_OF_MEMORY, evidence=evidence)


def _usual(request: TrialRequest, limit_s: float) -> str:
    if request.reference_step_s is None:
        return f"limit {limit_s:.0f} s"
    return f"{request.reference_precision or 'usually'}: {request.reference_step_s:.1f} s"


def _last_readings(ending: ChildEnding) -> TrialReadings | None:
    return next((each for each in reversed(ending.messages) if isinstance(each, TrialReadings)), None)


def _verdict_of(request: TrialRequest, attempt: _Attempt) -> TrialVerdict:
    ending = attempt.ending
    readings = _last_readings(ending)
    if readings is not None:
        return judge_readings(request, readings, ending)
    last = ending.messages[-1] if ending.messages else None
    if isinstance(last, TrialVerdict):
        return last
    return judge_silence(
        request,
        ending,
        largest_resident_bytes=attempt.watch.largest_resident_bytes,
        killed_by_kernel=attempt.killed_by_kernel,
    )


def judge_readings(request: TrialRequest, readings: TrialReadings, ending: ChildEnding) -> TrialVerdict:
    """Judge a trial by its readings, and say so where they could not be attributed; that alone is no failure."""
    verdict = judge_measurement(readings.measurement, request)
    if readings.unattributed_because is None:
        return verdict
    reason = ending.stop_reason or readings.unattributed_because
    return replace(verdict, evidence=f"{verdict.evidence}; what the peak consists of is not known: {reason}")


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


def _last_word(ending: ChildEnding) -> str:
    """Quote the last line that a process printed; most interpreters and libraries say there why they give up."""
    lines = [line.strip() for line in ending.log_tail.splitlines() if line.strip()]
    return f"; its last line: {lines[-1][:_QUOTED_CHARACTERS]}" if lines else ""


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
        evidence = (
            f"the process ended with exit status {ending.return_code} in the middle of the trial{_last_word(ending)}"
        )
        return TrialVerdict(kind=OutcomeKind.CRASH, evidence=evidence)
    name = signal.Signals(-ending.return_code).name
    resident = f"; seen at {format_bytes(largest_resident_bytes)} resident" if largest_resident_bytes else ""
    if ending.return_code == -signal.SIGKILL and killed_by_kernel:
        evidence = f"killed by the kernel for want of memory (its oom_kill counter rose){resident}"
        return TrialVerdict(kind=OutcomeKind.HOST_OUT_OF_MEMORY, evidence=evidence)
    near_budget = largest_resident_bytes >= _NEAR_BUDGET_SHARE * request.budget_bytes
    if ending.return_code in (-signal.SIGKILL, -signal.SIGABRT) and near_budget:
        evidence = f"ended by {name} near its budget of {format_bytes(request.budget_bytes)}{resident}"
        return TrialVerdict(kind=OutcomeKind.HOST_OUT_OF_MEMORY, evidence=evidence)
    return TrialVerdict(kind=OutcomeKind.CRASH, evidence=f"the process was ended by {name}")
