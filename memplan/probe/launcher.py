"""The parent side of one live trial: start the child, watch it, and turn every ending into an outcome."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.children import ChildEnding, Template, run_child
from memplan.devices.cards import DeviceKind
from memplan.errors import DeviceError
from memplan.probe.commands.trial import run_command_trial
from memplan.probe.judging import judge_readings, judge_silence, over_resident_limit, over_step_limit
from memplan.probe.oom_evidence import count_oom_kills, has_killed_since
from memplan.probe.process_tree import ProcessTree
from memplan.probe.trials import (
    LIMITED_PHASES,
    PROFILER_ALLOWANCE_BYTES,
    UNTIMED_LOADER_NOTE,
    WORKER_MODULE,
    ForkRefused,
    TrialNotes,
    TrialPhase,
    TrialProgress,
    TrialReadings,
    TrialRequest,
    TrialVerdict,
    trial_environment,
)
from memplan.results import Outcome, OutcomeKind
from memplan.workload import TrainingCommand

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


def trial_template(imports: Collection[str] = ()) -> Template:
    """Return a template of trials: torch is loaded once, and each trial forked from there in milliseconds.

    Measured with torch 2.13 on two cores: 4.5 s for a trial of a small model started from nothing, 0.7 s forked; the
    process peaks of the two differ by less than 0.5 %, as much as two of a kind do. A process that runs one trial after
    another would save no more than that, and its peaks would carry what earlier trials left in the heap.

    Args:
        imports: modules of installed packages that every trial imports, loaded once as well.
    """
    return Template(WORKER_MODULE, imports)


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
        DeviceError: PyTorch cannot use the device, whatever the recipe.
    """
    if isinstance(request.source, TrainingCommand):
        return run_command_trial(request, request.source, on_progress=on_progress)
    attempt = _attempt(request, on_progress, template)
    if template is not None and attempt.failed_for_the_template:
        if not attempt.ending.lost_its_template:
            template.give_up()
        attempt = _attempt(request, on_progress, None)
    ending, readings = attempt.ending, attempt.readings
    for each in ending.messages:
        if isinstance(each, DeviceError):
            raise each
    verdict = attempt.watch.verdict or _verdict_of(request, attempt)
    return Outcome(
        kind=verdict.kind,
        evidence=verdict.evidence,
        duration_s=ending.duration_s,
        measurement=readings.measurement if readings else None,
        log_tail=ending.log_tail,
        notes=(
            *(note for each in ending.messages if isinstance(each, TrialNotes) for note in each.notes),
            *_loader_notes(attempt),
        ),
        available_samples=verdict.available_samples,
    )


def _loader_notes(attempt: _Attempt) -> tuple[str, ...]:
    """Say why there are no figures of a data loader that ended its process, or was stopped."""
    ending = attempt.ending
    if not attempt.watch.is_loading or (ending.stop_reason is None and ending.return_code == 0):
        return ()
    reason = ending.stop_reason or f"it ended the process with status {ending.return_code}"
    return (UNTIMED_LOADER_NOTE.format(reason=reason),)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """One child process and how it ended."""

    watch: _Watch
    ending: ChildEnding
    killed_by_kernel: bool

    @property
    def readings(self) -> TrialReadings | None:
        """The last that it sent; None where it ended before there were any."""
        return next((each for each in reversed(self.ending.messages) if isinstance(each, TrialReadings)), None)

    @property
    def failed_for_the_template(self) -> bool:
        """Whether it says nothing about the recipe: its process could not be forked, or ended with its template."""
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
        environment=trial_environment(request.device),
        template=template,
    )
    return _Attempt(watch=watch, ending=ending, killed_by_kernel=has_killed_since(kills_before))


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
        self._step_before_s: float | None = None
        self._stepping_since: float | None = None

    @property
    def is_loading(self) -> bool:
        """Whether the child times the data loader, the last thing that it does."""
        return self._progress is not None and self._progress.phase is TrialPhase.LOADING

    def hear(self, message: object) -> None:
        if isinstance(message, TrialProgress):
            now, before = time.monotonic(), self._progress
            if before is not None and before.phase in LIMITED_PHASES and before.step != message.step:
                self._step_before_s = now - self._since
            self._progress = message
            self._since = now
            if message.step is not None and self._stepping_since is None:
                self._stepping_since = self._since
            if self._on_progress is not None:
                self._on_progress(message)
        self._has_verdict = self._has_verdict or isinstance(message, TrialVerdict)
        self._has_readings = self._has_readings or isinstance(message, TrialReadings)

    def find_reason_to_stop(self, pid: int, age_s: float) -> str | None:
        """Return why to stop; once there are readings, they decide, whatever comes after."""
        if self._has_verdict:
            return None
        if self._has_readings:
            running_s = time.monotonic() - self._since
            if self.is_loading:  # what its workers hold, and share with this process, is no part of a step
                stop = self._over(self._request.loader_limit_s or self._request.time_limit_s, running_s)
            else:
                stop = self._over(self._request.time_limit_s, running_s) or self._over_budget(pid)
            return stop.evidence if stop else None
        if self._stepping_since is None:
            over_time = self._over(self._request.build_limit_s, age_s)
        else:
            over_time = self._over(self._request.time_limit_s, time.monotonic() - self._stepping_since)
        self.verdict = over_time or self._over_step_limit() or self._over_budget(pid)
        return self.verdict.evidence if self.verdict else None

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
        progress = self._progress
        if progress is None or progress.step is None or progress.phase not in LIMITED_PHASES:
            return None
        running_s = time.monotonic() - self._since
        return over_step_limit(
            self._request.step_limit, step=progress.step, running_s=running_s, before_s=self._step_before_s
        )

    def _over_budget(self, pid: int) -> TrialVerdict | None:
        if self._request.device.kind is not DeviceKind.CPU:
            return None
        resident_bytes = self._tree.resident_bytes(pid)
        allowed_bytes = self._request.budget_bytes + (PROFILER_ALLOWANCE_BYTES if self._has_readings else 0)
        self.largest_resident_bytes = max(self.largest_resident_bytes, resident_bytes)
        return over_resident_limit(resident_bytes, allowed_bytes)


def _verdict_of(request: TrialRequest, attempt: _Attempt) -> TrialVerdict:
    ending = attempt.ending
    if attempt.readings is not None:
        return judge_readings(request, attempt.readings, ending)
    last = ending.messages[-1] if ending.messages else None
    if isinstance(last, TrialVerdict):
        return last
    return judge_silence(
        request,
        ending,
        largest_resident_bytes=attempt.watch.largest_resident_bytes,
        killed_by_kernel=attempt.killed_by_kernel,
    )
