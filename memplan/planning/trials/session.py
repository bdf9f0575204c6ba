"""The live trials of one run: each recipe runs once and is journalled before the next one starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.planning.trials.neighbours import run_in_turn, was_disturbed
from memplan.planning.trials.patched_configs import source_of_trial
from memplan.probe.trials import DEFAULT_BUILD_LIMIT_S, DEFAULT_LOADER_LIMIT_S, DEFAULT_TRIAL_LIMIT_S, TrialRequest
from memplan.progress import Notice, TrialEnded, TrialStarted
from memplan.results import OutcomeKind, Trial

if TYPE_CHECKING:
    from memplan.children import Template
    from memplan.planning.question import Question
    from memplan.planning.traces import Traces
    from memplan.probe.journal_run import JournalRun
    from memplan.probe.trials import StepLimit
    from memplan.progress import Observer
    from memplan.recipe import Recipe
    from memplan.results import Outcome

# Endings that would repeat; a crash or a bug may have been fixed since the run was interrupted.
_WORTH_KEEPING = frozenset(OutcomeKind) - {
    OutcomeKind.USER_ERROR,
    OutcomeKind.NEVER_STEPPED,
    OutcomeKind.TOO_FEW_STEPS,
    OutcomeKind.CRASH,
    OutcomeKind.KERNEL_FAILURE,
}


class TrialSession:
    """Runs recipes of a question's subject on its device; any device peak up to the device's total counts as fitting.

    Args:
        question: what is trained where, and how long a trial may take.
        run: the journal entry; its finished trials are not run again.
        traces: predicts each recipe, so that every trial is kept with its estimate.
        observer: called with every event.
        template: forks the trials' processes; None starts each afresh.
    """

    def __init__(
        self,
        question: Question,
        run: JournalRun,
        traces: Traces,
        observer: Observer,
        *,
        template: Template | None = None,
    ) -> None:
        self._question = question
        self._device = question.device
        self._trial_limit_s = question.request.trial_limit_s
        self._run = run
        self._traces = traces
        self._observer = observer
        self._template = template
        self._trials: list[Trial] = []
        self._told: set[str] = set()

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials so far, in order."""
        return tuple(self._trials)

    def try_recipe(
        self, recipe: Recipe, purpose: str, *, step_limit: StepLimit | None = None, runs_compiled: bool = True
    ) -> Trial:
        """Run a recipe, or return its trial where it was run before, in this process or in the interrupted one.

        Args:
            recipe: what to run.
            purpose: why, in a few words.
            step_limit: how long one step may take; None for no limit of its own.
            runs_compiled: whether what the workload compiles runs so; else as it is written.
        """
        known = next((trial for trial in self._trials if trial.recipe == recipe), None)
        if known is not None:
            return known
        stored = self._run.finished_trial(recipe)
        resumed = stored if stored is not None and stored.outcome.kind in _WORTH_KEEPING else None
        trial = resumed or self._live(purpose, self._request(recipe, step_limit, runs_compiled=runs_compiled))
        self._trials.append(trial)
        command = self._run.command_for(trial)
        self._observer(TrialEnded(trial=trial, was_resumed=resumed is not None, command=command))
        return trial

    def _live(self, purpose: str, request: TrialRequest) -> Trial:
        number, recipe = len(self._trials) + 1, request.recipe
        estimate = self._traces.estimate_if_traceable(recipe)
        self._observer(TrialStarted(number=number, purpose=purpose, recipe=recipe))
        outcome = self._run_in_turn(request)
        if was_disturbed(outcome, budget_bytes=self._device.total_bytes):
            self._tell_once(f"trial {number} is run again: {outcome.evidence}")
            outcome = self._run_in_turn(request)
        trial = Trial(
            number=number,
            purpose=purpose,
            recipe=recipe,
            device_name=self._device.name,
            budget_bytes=self._device.total_bytes,
            outcome=outcome,
            estimate=estimate,
        )
        self._run.record(trial, request)
        for note in (*outcome.notes, *(outcome.measurement.notes if outcome.measurement else ())):
            self._tell_once(note)
        return trial

    def _request(self, recipe: Recipe, step_limit: StepLimit | None, *, runs_compiled: bool) -> TrialRequest:
        warmup_steps, timed_steps = (1, 2) if recipe.accumulation_steps > 1 else (2, 3)  # of two passes or more each
        return TrialRequest(
            source=source_of_trial(self._question, recipe),
            warmup_steps=warmup_steps,
            timed_steps=timed_steps,
            recipe=recipe,
            device=self._device,
            budget_bytes=self._device.total_bytes,
            build_limit_s=self._trial_limit_s or DEFAULT_BUILD_LIMIT_S,
            time_limit_s=self._trial_limit_s or DEFAULT_TRIAL_LIMIT_S,
            step_limit=step_limit,
            configured_learning_rate=self._question.subject.current.learning_rate,
            loader_limit_s=None if any(trial.fits for trial in self._trials) else DEFAULT_LOADER_LIMIT_S,
            runs_compiled=runs_compiled,
        )

    def _run_in_turn(self, request: TrialRequest) -> Outcome:
        return run_in_turn(request, notify=self._tell_once, observer=self._observer, template=self._template)

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._observer(Notice(text=text))
