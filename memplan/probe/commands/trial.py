"""One live trial of a training command: start it with the hook before it, watch it, and say how it ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from memplan import late_imports
from memplan.children import run_child
from memplan.devices.cards import DeviceKind
from memplan.probe.commands import hook as command_hook
from memplan.probe.commands import hook_figures, hook_loaders
from memplan.probe.commands.cards import CardWatch, allocator_limit_bytes, visible_cards
from memplan.probe.commands.endings import (
    CommandEnding,
    for_want_of_neighbours,
    for_want_of_samples,
    judge_ending,
    judge_place,
    judge_steps,
    steps_taken,
    without_enough_steps,
)
from memplan.probe.commands.events import (
    EventFile,
    OptimizerBuilt,
    StepEnded,
    StepsFinished,
    StepSkipped,
    without_earlier_steps,
)
from memplan.probe.commands.readings import (
    OutsideReadings,
    available_samples,
    measure,
    notes_on,
    samples_of_pass,
    training_pids,
    warmup_of,
)
from memplan.probe.commands.template import PlaceholderName, fill_command, parse_template
from memplan.probe.commands.worker import CommandLine
from memplan.probe.judging import is_near_budget, over_resident_limit, over_step_limit
from memplan.probe.oom_evidence import count_oom_kills, has_killed_since
from memplan.probe.process_tree import ProcessTree
from memplan.probe.trials import MOST_SKIPPED_STEPS, TrialPhase, TrialProgress, TrialVerdict
from memplan.results import Outcome, OutcomeKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memplan.children import ChildEnding
    from memplan.probe.commands.events import Event
    from memplan.probe.trials import TrialRequest
    from memplan.results import Measurement
    from memplan.workload import TrainingCommand

WORKER_MODULE = "memplan.probe.commands.worker"
_UNOBSERVED_LIMIT_S = 60.0  # the hook reports a Python process when that starts
_CUT_OFF_LIMIT_S = 10.0  # a process that was started without the hook's settings will never be reported
_AFTER_LAST_STEP_S = 2.0  # for launchers to tidy up; what else the command line has to do is not of interest


def run_command_trial(
    request: TrialRequest, command: TrainingCommand, *, on_progress: Callable[[TrialProgress], None] | None
) -> Outcome:
    """Run a command at one recipe until it has taken its steps; a failing trial is an outcome, not an exception.

    Args:
        request: the recipe, the device and the limits.
        command: what to start.
        on_progress: called in this process as the command steps.

    Raises:
        ChildError: the process could not be started.
        UsageError: the command cannot be filled with this recipe.
    """
    kills_before = count_oom_kills()
    with tempfile.TemporaryDirectory(prefix="memplan-") as name:
        folder = Path(name)
        copy = _patched_config(command, folder)
        line = fill_command(command, request.recipe, patched_path=copy)
        watch = _Watch(request, command, folder, on_progress)
        environment = _environment(request, command, folder, watch.cards.others_before_bytes)
        started = CommandLine(text=line, working_folder=command.working_folder, environment=environment)
        ending = run_child(WORKER_MODULE, started, watch=watch.find_reason_to_stop)
        watch.hear()
    _remove_folders_of_workers(watch.events)
    verdict = watch.verdict or _failure(request, watch, ending, was_killed=has_killed_since(kills_before))
    verdict = verdict or judge_place(watch.events, request)
    measurement = None if verdict else watch.measure()
    if measurement is not None:
        verdict = judge_steps(measurement, watch.events, request)
    elif verdict is None:
        verdict = without_enough_steps(watch.events)
    if copy is not None and verdict is not None:
        verdict = for_want_of_neighbours(verdict, Path(copy))
    available = None if verdict.kind.is_too_large else available_samples(watch.events, request.recipe)
    if available is not None:
        verdict = for_want_of_samples(verdict, request.recipe, available)
    return Outcome(
        kind=verdict.kind,
        evidence=verdict.evidence,
        duration_s=ending.duration_s,
        measurement=measurement,
        log_tail=ending.log_tail,
        notes=notes_on(watch.events, request.recipe),
        available_samples=available,
    )


def _remove_folders_of_workers(events: Sequence[Event]) -> None:
    """Remove what processes that ended at once have left among temporary files; no worker is left by now."""
    for each in events:
        if isinstance(each, StepsFinished) and each.folder_of_workers is not None:
            shutil.rmtree(each.folder_of_workers, ignore_errors=True)


def _patched_config(command: TrainingCommand, folder: Path) -> str | None:
    """Write the copy of the config that the trial reads, under the config's name; None where there is none."""
    if command.config_text is None or command.config_path is None:
        return None
    copy = folder / "config" / Path(command.config_path).name
    copy.parent.mkdir()
    copy.write_bytes(command.config_text.encode())  # line endings as they are
    return str(copy)


def _environment(request: TrialRequest, command: TrainingCommand, folder: Path, others_bytes: int) -> dict[str, str]:
    """Put the hook ahead of the command's own modules, with its settings."""
    hook = folder / "hook"
    hook.mkdir()
    (folder / "leave").mkdir()
    (folder / "events").touch()
    install_hook(hook)
    paths = [str(hook), *filter(None, [os.environ.get("PYTHONPATH")])]
    is_cpu = request.device.kind is DeviceKind.CPU
    settings = {
        "events_path": str(folder / "events"),
        "steps": command.steps,
        "leave_folder": None if is_cpu else str(folder / "leave"),
        "resident_limit_bytes": request.budget_bytes if is_cpu else None,
        "card_limit_bytes": None if is_cpu else allocator_limit_bytes(request, others_bytes),
    }
    return {
        "PYTHONPATH": os.pathsep.join(paths),
        command_hook.SETTINGS_VARIABLE: json.dumps(settings),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # NVML's order, by which the device was chosen
        **visible_cards(request),
    }


def install_hook(folder: Path) -> None:
    """Copy the hook into a folder, by the names under which Python and the hook look for its parts."""
    parts = {
        "sitecustomize.py": command_hook.__file__,
        "memplan_hook_figures.py": hook_figures.__file__,
        "memplan_hook_loaders.py": hook_loaders.__file__,
        "memplan_late_imports.py": late_imports.__file__,
    }
    for name, path in parts.items():
        (folder / name).write_bytes(Path(path).read_bytes())


class _Watch:
    """Follows a command from outside, by the events of its hook and by what its processes hold."""

    def __init__(
        self,
        request: TrialRequest,
        command: TrainingCommand,
        folder: Path,
        on_progress: Callable[[TrialProgress], None] | None,
    ) -> None:
        self.verdict: TrialVerdict | None = None
        self.events: list[Event] = []
        self.largest_resident_bytes = 0
        self._request = request
        self._command = command
        self._folder = folder
        self._file = EventFile(folder / "events")
        self._on_progress = on_progress
        self._tree = ProcessTree()
        self._other_processes_bytes = 0
        self._since = time.monotonic()
        self._step_before_s: float | None = None
        self._stepping_since: float | None = None
        self._is_on_cpu = request.device.kind is DeviceKind.CPU
        self.cards = CardWatch(request.card_indices)
        self._tell(TrialProgress(phase=TrialPhase.STARTING))

    def hear(self) -> None:
        """Read what the hook has reported since the last time."""
        for event in self._file.read_new():
            if isinstance(event, OptimizerBuilt):
                self.events = without_earlier_steps(self.events, event.pid)
            self.events.append(event)
            if isinstance(event, OptimizerBuilt):
                self._other_processes_bytes = 0  # a replica that was still being built was taken for another process
                self._tell(TrialProgress(phase=TrialPhase.BUILDING))
            if isinstance(event, StepEnded):
                now = time.monotonic()
                self._step_before_s = None if self._stepping_since is None else now - self._since
                self._since = now
                self._stepping_since = self._stepping_since or now
                self._tell(self._progress(event))
            if isinstance(event, StepsFinished):
                self._since = time.monotonic()
                self._let_go(event.pid)

    def find_reason_to_stop(self, pid: int, age_s: float) -> str | None:
        """Return why to stop; a command that has taken its steps is given a moment to end by itself."""
        self.hear()
        if self._has_finished():
            return "all steps were taken" if time.monotonic() - self._since > _AFTER_LAST_STEP_S else None
        over_limit = self._over_time(age_s) or self._over_step_limit() or self._over_skips()
        self.verdict = over_limit or self._over_budget(pid) or self._unobserved()
        if self.verdict is None:
            return None
        for each in {event.pid for event in self.events}:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(each, signal.SIGUSR1)  # the hook has it print where it is
        return self.verdict.evidence

    def measure(self) -> Measurement | None:
        """Put the readings together; None where there were too few steps."""
        outside = OutsideReadings(
            other_processes_bytes=self._other_processes_bytes,
            context_bytes=self.cards.context_bytes,
            others_on_card_bytes=self.cards.others_bytes,
        )
        recipe = self._request.recipe
        return measure(
            self.events,
            outside,
            samples_of_pass=samples_of_pass(self.events, recipe),
            accumulation_steps=recipe.accumulation_steps if self._sets_accumulation() else None,
            usual_context_bytes=self._request.device.context_bytes,
        )

    def _sets_accumulation(self) -> bool:
        return parse_template(self._command.template).sets(PlaceholderName.ACCUMULATION_STEPS)

    def _has_finished(self) -> bool:
        finished = self._finished_pids()
        return bool(finished) and finished >= set(training_pids(self.events))

    def _pids_with_optimizer(self) -> set[int]:
        return {event.pid for event in self.events if isinstance(event, OptimizerBuilt)}

    def _finished_pids(self) -> set[int]:
        return {event.pid for event in self.events if isinstance(event, StepsFinished)}

    def _tell(self, progress: TrialProgress) -> None:
        if self._on_progress is not None:
            self._on_progress(progress)

    def _progress(self, event: StepEnded) -> TrialProgress:
        is_timed = event.step >= warmup_of(self._command.steps)
        return TrialProgress(
            phase=TrialPhase.TIMING if is_timed else TrialPhase.WARMING_UP,
            step=event.step + 1,
            step_count=self._command.steps,
        )

    def _over_time(self, age_s: float) -> TrialVerdict | None:
        steps, since = steps_taken(self.events), self._stepping_since
        running_s = age_s if since is None else time.monotonic() - since
        limit_s = self._request.build_limit_s if since is None else self._request.time_limit_s
        if running_s <= limit_s:
            return None
        done = f"{steps} {'step' if steps == 1 else 'steps'}" if steps else without_enough_steps(self.events).evidence
        evidence = f"still running after {running_s:.0f} s (limit {limit_s:.0f} s): {done}"
        return TrialVerdict(kind=OutcomeKind.TIMEOUT if steps else OutcomeKind.NEVER_STEPPED, evidence=evidence)

    def _unobserved(self) -> TrialVerdict | None:
        if self.events:
            return None
        cut_off_s = self._tree.python_age_s(without=command_hook.SETTINGS_VARIABLE)
        if self._tree.python_age_s() <= _UNOBSERVED_LIMIT_S and cut_off_s <= _CUT_OFF_LIMIT_S:
            return None
        return without_enough_steps(self.events)

    def _over_skips(self) -> TrialVerdict | None:
        last = self.events[-1] if self.events else None
        if not isinstance(last, StepSkipped) or last.count <= MOST_SKIPPED_STEPS:
            return None
        evidence = f"the gradient scaler skipped {last.count} steps one after another"
        return TrialVerdict(kind=OutcomeKind.NON_FINITE_LOSS, evidence=evidence)

    def _over_step_limit(self) -> TrialVerdict | None:
        steps, running_s = steps_taken(self.events), time.monotonic() - self._since
        if not steps:
            return None
        limit, before_s = self._request.step_limit, self._step_before_s
        return over_step_limit(limit, step=steps + 1, running_s=running_s, before_s=before_s)

    def _over_budget(self, pid: int) -> TrialVerdict | None:
        training = self._pids_with_optimizer()
        training_bytes, other_bytes = self._tree.resident_parts(pid, training)
        self.hear()
        if self._finished_pids():  # one may have left: what it shared with the others would be counted as theirs
            return None
        # a replica that is still being built, or was while this was read, counts among the others
        if steps_taken(self.events) and training == self._pids_with_optimizer():
            self._other_processes_bytes = max(self._other_processes_bytes, other_bytes)
        resident_bytes = training_bytes + other_bytes
        self.largest_resident_bytes = max(self.largest_resident_bytes, resident_bytes)
        return over_resident_limit(resident_bytes, self._request.budget_bytes) if self._is_on_cpu else None

    def _let_go(self, pid: int) -> None:
        """Ask the driver what a process holds that waits for it, then let it go."""
        figures = (each.card for each in reversed(self.events) if isinstance(each, StepEnded) and each.pid == pid)
        card = next(figures, None)
        if card is not None:
            self.cards.read(pid, card)
        (self._folder / "leave" / str(pid)).touch()


def _failure(request: TrialRequest, watch: _Watch, ending: ChildEnding, *, was_killed: bool) -> TrialVerdict | None:
    """Say why a command that ended by itself failed; None where its readings are to judge it."""
    if ending.stop_reason is not None:
        return None
    return judge_ending(
        CommandEnding(
            events=watch.events,
            return_code=ending.return_code,
            log_tail=ending.log_tail,
            is_memory_full=is_near_budget(watch.largest_resident_bytes, request),
            was_killed_by_kernel=was_killed,
        )
    )
