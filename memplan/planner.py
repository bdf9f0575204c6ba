"""The one orchestration: estimate, probe, recommend, patch."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING

from memplan.devices.resolving import resolve_device
from memplan.errors import MemplanError, UsageError
from memplan.estimators import trace_template
from memplan.launchers import read_launch
from memplan.planning.absent import check_note, check_on_cpu, predict
from memplan.planning.command_notes import command_notes
from memplan.planning.fingerprints import fingerprint_of, read_surroundings
from memplan.planning.finishing import Recommendation, finished_plan, sentences
from memplan.planning.live import LiveSearch, is_settled
from memplan.planning.patching import draft, scale
from memplan.planning.planned_device import device_for, share_of
from memplan.planning.recall import recalled
from memplan.planning.session import TrialSession
from memplan.planning.sharing import shared
from memplan.planning.traces import Traces
from memplan.probe import Journal, trial_template
from memplan.progress import ignore
from memplan.recommend.band import Band
from memplan.recommend.choice import explain
from memplan.recommend.knee import knee_reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan.devices.cards import DeviceSpec
    from memplan.planning.subject import Subject
    from memplan.plans import Plan, PlanRequest
    from memplan.probe import JournalRun
    from memplan.progress import Observer
    from memplan.recipe import Recipe
    from memplan.results import ProbeResult

_SETTLED = "memplan planned this recipe before, for the same wishes, and its peak is where it was promised."


class Planning:
    """One plan in the making: device and band are known at once, trials run when asked for.

    Args:
        subject: what is trained.
        request: what is wanted of the device.

    Raises:
        UsageError: the band is out of range.
        DeviceError: the device is not known or not reachable.
    """

    def __init__(self, subject: Subject, request: PlanRequest) -> None:
        self.subject = subject
        self.request = request
        self._launch = read_launch(os.environ)
        self.device = share_of(device_for(request.device, request.budget_bytes), request, self._launch)
        self.band = Band(
            total_bytes=self.device.total_bytes,
            min_utilisation=request.min_utilisation,
            max_utilisation=request.max_utilisation,
        )
        self._template = trial_template()
        self._trace_template = trace_template()

    def plan(self, observer: Observer = ignore, *, fresh: bool = False) -> Plan:
        """Estimate, try, choose and write the patch; the finished plan is stored.

        A plan that was made before for the same question is given out again, unless a fresh one is wanted. Where a
        launcher started this process with others, rank 0 makes the plan and the others wait for it.
        """
        return shared(lambda: self._own_plan(observer, fresh=fresh), self.request.store, observer, self._launch)

    def _own_plan(self, observer: Observer, *, fresh: bool) -> Plan:
        if self.subject.is_command and not self.device.is_here:
            raise UsageError(
                f"a training command is only run live, and device {self.device.name!r} is not present",
                hint="run it where that card is, or leave --device out for this machine; without a command, "
                f"memplan probe CONFIG --workload module:function --device {self.device.name} plans by an estimate",
            )
        known = None if fresh else recalled(self._journal, self._fingerprint, self.subject, self.band, self.device)
        if known is not None:
            return known
        with self._trace_template:
            traces = self._proven_traces(observer)
            draft(self.subject, self.request)
            with self._open_run(fresh=fresh) as run, self._template, _ended_by_errors(run):
                recommend = self._recommend_live if self.device.is_here else self._recommend_by_estimate
                made = finished_plan(
                    recommend(run, traces, observer),
                    run_id=run.run_id,
                    subject=self.subject,
                    request=self.request,
                    device=self.device,
                    template=self._template,
                )
                run.finish(made)
        return made

    def probe(self, observer: Observer = ignore) -> ProbeResult:
        """Search the subject's own precision only.

        Raises:
            UsageError: the device is not present.
        """
        if not self.device.is_here:
            raise UsageError(
                f"device {self.device.name!r} is not present", hint="probe runs live; use estimate or plan"
            )
        with self._trace_template:
            traces = self._proven_traces(observer)
            with self._open_run(fresh=False) as run, self._template, _ended_by_errors(run):
                found = self._search(traces, run, observer).probe()
                run.finish(None)
        return found

    @property
    def _journal(self) -> Journal:
        return Journal(self.request.store)

    @functools.cached_property
    def _surroundings(self) -> dict[str, str]:
        return read_surroundings(self.device)

    @functools.cached_property
    def _fingerprint(self) -> str:
        return fingerprint_of(self.subject, self.request, self.device, self._surroundings)

    def _open_run(self, *, fresh: bool) -> JournalRun:
        facts = {**self.request.facts(), "subject": self.subject.label, "versions": self._surroundings}
        return self._journal.open_run(self._fingerprint, facts, fresh=fresh)

    def _traces(self, device: DeviceSpec, observer: Observer) -> Traces:
        limit_s = self.request.trace_limit_s
        return Traces(self.subject.source, device, observer, trace_limit_s=limit_s, template=self._trace_template)

    def _proven_traces(self, observer: Observer) -> Traces:
        """Trace the current recipe before anything is stored, so that a broken workload changes nothing on disk."""
        traces = self._traces(self.device, observer)
        if self.device.live_index is not None or not traces.can_trace:
            traces.of_if_traceable(self.subject.current)  # the card may run what cannot be traced
        else:
            traces.of(self.subject.current)
        return traces

    def _session(self, device: DeviceSpec, traces: Traces, run: JournalRun, observer: Observer) -> TrialSession:
        return TrialSession(
            source=self.subject.source,
            device=device,
            budget_bytes=device.total_bytes,
            run=run,
            traces=traces,
            observer=observer,
            template=self._template,
            configured_learning_rate=self.subject.current.learning_rate,
            trial_limit_s=self.request.trial_limit_s,
        )

    def _search(self, traces: Traces, run: JournalRun, observer: Observer) -> LiveSearch:
        return LiveSearch(
            subject=self.subject,
            request=self.request,
            device=self.device,
            band=self.band,
            session=self._session(self.device, traces, run, observer),
            traces=traces,
            observer=observer,
        )

    def _recommend_live(self, run: JournalRun, traces: Traces, observer: Observer) -> Recommendation:
        search = self._search(traces, run, observer)
        current = search.try_current()
        if is_settled(current, self.subject, self.request, self.band):
            return Recommendation(
                recipe=current.recipe,
                estimate=current.estimate,
                chosen=current,
                trials=search.trials,
                reasons=(_SETTLED,),
            )
        found = search.compare()
        optimizer_name = traces.optimizer_name(found.choice.trial.recipe)
        chosen = search.confirm(
            found.choice.trial.recipe,
            lambda recipe: self.subject.as_tried(scale(recipe, self.subject, self.request, optimizer_name).recipe),
        )
        scaled = scale(chosen.recipe, self.subject, self.request, optimizer_name)
        return Recommendation(
            recipe=scaled.recipe,
            estimate=chosen.estimate,
            chosen=chosen,
            trials=search.trials,
            verdicts=found.verdicts,
            reasons=(
                *explain(
                    chosen,
                    search.trials,
                    self.band,
                    current=self.subject.current,
                    current_name=self.subject.current_name,
                ),
                *sentences(
                    knee_reason(chosen, search.trials, self.band),
                    None if self.subject.is_command and self.subject.config is None else scaled.remark,
                ),
            ),
            notes=(
                *command_notes(self.subject, search.trials, scaled.recipe),
                *_accumulation_notes(chosen.recipe, traces),
            ),
        )

    def _recommend_by_estimate(self, run: JournalRun, traces: Traces, observer: Observer) -> Recommendation:
        found = predict(self.subject, self.request, self.device, self.band, traces)
        cpu = resolve_device("cpu")
        session = self._session(cpu, self._traces(cpu, observer), run, observer)
        check = check_on_cpu(self.subject, session)
        optimizer_name = traces.optimizer_name(found.estimate.recipe)
        scaled = scale(found.estimate.recipe, self.subject, self.request, optimizer_name)
        return Recommendation(
            recipe=scaled.recipe,
            estimate=found.estimate,
            chosen=None,
            trials=session.trials,
            verdicts=found.verdicts,
            reasons=(*found.reasons, *sentences(scaled.remark)),
            notes=(*found.notes, check_note(check), *_accumulation_notes(scaled.recipe, traces)),
        )


@contextlib.contextmanager
def _ended_by_errors(run: JournalRun) -> Iterator[None]:
    """Finish a run that fails for a reason of its own; one that was interrupted or killed stays open to be resumed."""
    try:
        yield
    except MemplanError:
        run.finish(None)
        raise


def _accumulation_notes(recipe: Recipe, traces: Traces) -> tuple[str, ...]:
    if recipe.accumulation_steps > 1 and traces.uses_batch_norm(recipe):
        return (f"batch norm sees {recipe.micro_batch_size} samples at a time, whatever is accumulated",)
    return ()
