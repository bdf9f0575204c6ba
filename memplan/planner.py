"""The one orchestration: estimate, probe, recommend, patch."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.errors import MemplanError, UsageError
from memplan.estimators import trace_template
from memplan.launchers import read_launch
from memplan.planning.absent import recommend_by_estimate
from memplan.planning.candidate_precisions import settings_to_trace
from memplan.planning.fingerprints import fingerprint_of, read_surroundings
from memplan.planning.launched.sharing import shared
from memplan.planning.present import recommend_live
from memplan.planning.question import question_of
from memplan.planning.recall import recalled
from memplan.planning.traces import Traces
from memplan.planning.trials.live import LiveSearch
from memplan.planning.trials.session import TrialSession
from memplan.planning.writing.finishing import finished_plan
from memplan.planning.writing.patching import draft
from memplan.probe.journal import Journal
from memplan.probe.journal_file import require_store
from memplan.probe.launcher import trial_template
from memplan.probe.trials import trial_environment
from memplan.progress import PlanEnded
from memplan.workload import TrainingCommand

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan.planning.question import Question
    from memplan.planning.recommendation import Recommendation
    from memplan.plans import Plan
    from memplan.probe.journal_run import JournalRun
    from memplan.progress import Observer
    from memplan.results import ProbeResult


class Planning:
    """One plan in the making.

    Args:
        question: what the plan is to answer.
        observer: called with every event.
    """

    def __init__(self, question: Question, observer: Observer) -> None:
        self._question = question
        self._observer = observer
        self._journal = Journal(question.request.store)
        self._surroundings = read_surroundings(question.device)
        source, device = question.subject.source, question.device
        # a trace changes torch before it imports a package that keeps what it finds there; a trial does not
        early = () if isinstance(source, TrainingCommand) or not device.is_here else source.installed_modules
        self._trial_template = trial_template(early)
        # off cards both see the same, and one load of torch serves traces and trials
        is_shared = device.live_index is None and not early
        self._trace_template = self._trial_template if is_shared else trace_template()

    def plan(self, *, fresh: bool = False) -> Plan:
        """Estimate, try, choose and write the patch; the finished plan is stored.

        A plan that was made before for the same question is given out again, unless a fresh one is wanted. Where a
        launcher started this process with others, rank 0 makes the plan and the others wait for it.
        """
        store, launch = self._question.request.store, read_launch(os.environ)

        def make() -> Plan:
            made = self._own_plan(fresh=fresh)
            self._observer(PlanEnded(plan=made))
            return made

        return shared(make, store, self._observer, launch)

    def _own_plan(self, *, fresh: bool) -> Plan:
        question = self._question
        if question.subject.is_command:
            self._require_device(
                hint="a training command is only run live: run it where that card is, or leave --device out for this "
                "machine; without a command, memplan probe CONFIG --workload module:function "
                f"--device {question.device.name} plans by an estimate",
            )
        fingerprint = fingerprint_of(question, self._surroundings)
        known = None if fresh else recalled(self._journal, fingerprint, question)
        if known is not None:
            return known
        require_store(question.request.store)
        with self._trace_template, self._trial_template:
            self._load_ahead()
            traces = self._proven_traces(compares_precisions=True)
            draft(question.subject, question.request)
            with self._open_run(fingerprint, fresh=fresh) as run:
                recommended = self._recommended(run, traces)
                made = finished_plan(recommended, question, run_id=run.run_id, template=self._trial_template)
                run.finish(made)
        return made

    def probe(self) -> ProbeResult:
        """Search the subject's own precision only.

        Raises:
            UsageError: the device is not present.
        """
        self._require_device(hint="probe runs live; use estimate or plan")
        fingerprint = fingerprint_of(self._question, self._surroundings)
        require_store(self._question.request.store)
        with self._trace_template, self._trial_template:
            self._load_ahead()
            traces = self._proven_traces(compares_precisions=False)
            with self._open_run(fingerprint, fresh=False) as run:
                found = self._search(run, traces).probe()
                run.finish(None)
        return found

    def _load_ahead(self) -> None:
        """Start loading torch for trials: on a card while the step is traced. A command starts processes of its own."""
        if not self._question.subject.is_command:
            self._trial_template.start(trial_environment(self._question.device))

    def _require_device(self, *, hint: str) -> None:
        device = self._question.device
        if not device.is_here:
            raise UsageError(f"device {device.name!r} is not present", hint=hint)

    @contextlib.contextmanager
    def _open_run(self, fingerprint: str, *, fresh: bool) -> Iterator[JournalRun]:
        """Open the run, or resume it where it was interrupted or killed; an error of memplan's own finishes it."""
        question = self._question
        facts = {**question.request.facts(), "subject": question.subject.label, "versions": self._surroundings}
        with self._journal.open_run(fingerprint, facts, fresh=fresh) as run:
            try:
                yield run
            except MemplanError as error:
                run.finish(None, failure=str(error))
                raise

    def _recommended(self, run: JournalRun, traces: Traces) -> Recommendation:
        question = self._question
        if question.device.is_here:
            return recommend_live(question, self._search(run, traces), traces)
        on_cpu = question_of(question.subject, replace(question.request, device="cpu", budget_bytes=None))
        return recommend_by_estimate(question, traces, self._session(on_cpu, run, self._traces(on_cpu)))

    def _search(self, run: JournalRun, traces: Traces) -> LiveSearch:
        session = self._session(self._question, run, traces)
        return LiveSearch(self._question, session, traces, self._observer)

    def _session(self, question: Question, run: JournalRun, traces: Traces) -> TrialSession:
        return TrialSession(question, run, traces, self._observer, template=self._trial_template)

    def _traces(self, question: Question) -> Traces:
        return Traces(
            question.subject.source,
            question.device,
            self._observer,
            trace_limit_s=question.request.trace_limit_s,
            template=self._trace_template,
        )

    def _proven_traces(self, *, compares_precisions: bool) -> Traces:
        """Trace the current recipe before anything is stored, so that a broken workload changes nothing on disk.

        Where precisions are compared, their steps are traced at the same time.
        """
        device, current = self._question.device, self._question.subject.current
        traces = self._traces(self._question)
        if compares_precisions and traces.can_trace:
            traces.make_ahead(settings_to_trace(self._question))
        if device.live_index is not None or not traces.can_trace:
            traces.of_if_traceable(current)  # the card may run what cannot be traced
        else:
            traces.of(current)
        return traces
