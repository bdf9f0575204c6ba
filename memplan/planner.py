"""The one orchestration: estimate, probe, recommend, patch."""

from __future__ import annotations

import importlib.metadata
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan.cards import DeviceKind
from memplan.configs import UserConfig, apply_patch, read_config
from memplan.devices import resolve_device
from memplan.errors import PatchError, StoreError, UsageError
from memplan.planning.absent import check_note, check_on_cpu, predict
from memplan.planning.live import LiveSearch, is_settled
from memplan.planning.options import parse_rule
from memplan.planning.patching import scale, write_patch
from memplan.planning.request import PlanRequest, Subject, subject_of_config, subject_of_workload
from memplan.planning.session import TrialSession
from memplan.planning.traces import Traces
from memplan.probe import Journal
from memplan.progress import ignore
from memplan.recipe import Precision, Recipe, parse_precision
from memplan.recommend.band import Band
from memplan.report.facts import report_run
from memplan.results import Plan, ProbeResult
from memplan.units import format_bytes, parse_bytes
from memplan.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.cards import DeviceSpec
    from memplan.probe import JournalRun
    from memplan.progress import Observer
    from memplan.report.facts import RunReport
    from memplan.results import ConfigPatch, Estimate, PrecisionVerdict, Trial

SETTLED = "memplan planned this recipe before, for the same wishes, and it is still in the band."


def estimate(
    workload: Workload, recipe: Recipe | None = None, device: str = "auto", *, budget: str | int | None = None
) -> Estimate:
    """Predict what one training step of a workload needs on a device, without one.

    Args:
        workload: what is trained; it is handed to a child process and nothing of it runs here.
        recipe: the setting to predict; micro-batch 1 in fp32 where it is None.
        device: card name, size such as ``24GiB``, live device such as ``cuda:0``, ``cpu`` or ``auto``.
        budget: what the step may use, in bytes or as text; None for the whole device.

    Returns:
        Allocated, reserved and process peaks in bytes, and the components of the process peak.

    Raises:
        UsageError: an argument is not understood.
        DeviceError: the device is not known or not reachable.
        WorkloadError: the workload raises or breaks its contract.
        TraceError: the model cannot be traced.
    """
    subject = subject_of_workload(workload, recipe or Recipe(micro_batch_size=1), tuple(sys.path))
    spec = _device(device, _bytes(budget))
    return Traces(subject.source, spec, ignore).estimate(subject.current)


def estimate_config(
    config: UserConfig,
    *,
    device: str | None = None,
    budget_bytes: int | None = None,
    micro_batch_sizes: Sequence[int] | None = None,
    precisions: Sequence[Precision] | None = None,
    observer: Observer = ignore,
) -> tuple[Estimate, ...]:
    """Predict a config's step at several micro-batch sizes and precisions; the config's own where none are given."""
    subject = subject_of_config(config)
    section = config.memplan_options
    budget_bytes = budget_bytes or (parse_bytes(section.budget) if section.budget else None)
    traces = Traces(subject.source, _device(device or section.device or "auto", budget_bytes), observer)
    return tuple(
        traces.estimate(replace(subject.current, micro_batch_size=size, precision=precision))
        for precision in precisions or (subject.current.precision,)
        for size in micro_batch_sizes or (subject.current.micro_batch_size,)
    )


def probe(
    workload: Workload,
    recipe: Recipe,
    device: str = "auto",
    max_util: float = 0.8,
    *,
    min_util: float = 0.6,
    budget: str | int | None = None,
    store: str | Path = ".memplan",
    observer: Observer = ignore,
) -> ProbeResult:
    """Find, by live trials in child processes, the micro-batch of one recipe that lands in the utilisation band.

    Args:
        workload: what is trained; its callables may be anything cloudpickle can carry.
        recipe: the setting; its micro-batch is tried first.
        device: ``cuda:0``, ``cpu`` or ``auto``.
        max_util: upper edge of the band, as a share of the device or budget.
        min_util: lower edge of the band.
        budget: what the step may use, in bytes or as text; None for the whole device.
        store: folder of the trial journal.
        observer: told what happens.

    Raises:
        NothingFitsError: not even a micro-batch of 1 fits.
        UsageError, DeviceError, WorkloadError, TraceError: as for :func:`estimate`.
    """
    request = PlanRequest(
        device=device,
        budget_bytes=_bytes(budget),
        max_utilisation=max_util,
        min_utilisation=min_util,
        precisions=(recipe.precision,),
        store=Path(store),
    )
    return Planning(subject_of_workload(workload, recipe, tuple(sys.path)), request).probe(observer)


def plan(
    config_or_workload: str | Path | UserConfig | Workload,
    *,
    recipe: Recipe | None = None,
    device: str = "auto",
    max_util: float = 0.8,
    min_util: float = 0.6,
    budget: str | int | None = None,
    precisions: Sequence[str] | None = None,
    global_batch: int | None = None,
    lr_rule: str = "linear",
    store: str | Path = ".memplan",
    observer: Observer = ignore,
) -> Plan:
    """Recommend the recipe that puts a device into the utilisation band, with the evidence and the patch.

    Args:
        config_or_workload: a config file, or a workload together with ``recipe``.
        recipe: the recipe a workload has now; a config says its own.
        device: card name, size, ``cuda:0``, ``cpu`` or ``auto``; a card that is not present is planned for by estimate.
        max_util: upper edge of the band, as a share of the device or budget.
        min_util: lower edge of the band.
        budget: what the step may use, in bytes or as text; None for the whole device.
        precisions: number formats to compare; None for those of the device that the config can express.
        global_batch: samples per optimizer step to hold by accumulation; None leaves it free.
        lr_rule: ``linear``, ``sqrt`` or ``none``.
        store: folder of the trial journal.
        observer: told what happens.

    Raises:
        NothingFitsError: no recipe fits.
        UsageError, ConfigError, DeviceError, WorkloadError, TraceError, StoreError: see their descriptions.
    """
    request = PlanRequest(
        device=device,
        budget_bytes=_bytes(budget),
        max_utilisation=max_util,
        min_utilisation=min_util,
        precisions=None if precisions is None else tuple(parse_precision(each) for each in precisions),
        global_batch_size=global_batch,
        learning_rate_rule=parse_rule(lr_rule),
        store=Path(store),
    )
    return Planning(_subject_of(config_or_workload, recipe), request).plan(observer)


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
        self.device = _device(request.device, request.budget_bytes)
        self.band = Band(
            total_bytes=self.device.total_bytes,
            min_utilisation=request.min_utilisation,
            max_utilisation=request.max_utilisation,
        )

    def plan(self, observer: Observer = ignore) -> Plan:
        """Estimate, try, choose and write the patch; the finished plan is stored."""
        traces = self._proven_traces(observer)
        with self._open_run() as run:
            made = (self._predicted_plan if self._is_absent else self._live_plan)(run, traces, observer)
            run.finish(made)
        return made

    def probe(self, observer: Observer = ignore) -> ProbeResult:
        """Search the subject's own precision only.

        Raises:
            UsageError: the device is not present.
        """
        if self._is_absent:
            raise UsageError(
                f"device {self.device.name!r} is not present", hint="probe runs live; use estimate or plan"
            )
        traces = self._proven_traces(observer)
        with self._open_run() as run:
            found = self._search(traces, run, observer).probe()
            run.finish(None)
        return found

    @property
    def _is_absent(self) -> bool:
        return self.device.kind is DeviceKind.CUDA and self.device.live_index is None

    def _open_run(self) -> JournalRun:
        versions = {name: importlib.metadata.version(name) for name in ("memplan", "torch")}
        facts = {**self.request.facts(), "subject": self.subject.label, "versions": versions}
        fingerprint = self.subject.fingerprint(self.request, self.device, versions)
        return Journal(self.request.store).open_run(fingerprint, facts)

    def _proven_traces(self, observer: Observer) -> Traces:
        """Trace the current recipe before anything is stored, so that a broken workload changes nothing on disk."""
        traces = Traces(self.subject.source, self.device, observer)
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

    def _live_plan(self, run: JournalRun, traces: Traces, observer: Observer) -> Plan:
        search = self._search(traces, run, observer)
        current = search.try_current()
        if is_settled(current, self.subject, self.request, self.band):
            return self._plan(
                run,
                recipe=current.recipe,
                estimate=traces.estimate(current.recipe),
                chosen=current,
                trials=search.trials,
                reasons=(SETTLED,),
            )
        found = search.compare()
        chosen = found.choice.trial
        scaled = scale(chosen.recipe, self.subject, self.request, traces.of(chosen.recipe).optimizer_name)
        return self._plan(
            run,
            recipe=scaled.recipe,
            estimate=chosen.estimate or traces.estimate(chosen.recipe),
            chosen=chosen,
            trials=search.trials,
            verdicts=found.verdicts,
            reasons=(*found.choice.reasons, *_sentence(scaled.remark)),
            notes=_accumulation_notes(scaled.recipe, traces),
        )

    def _predicted_plan(self, run: JournalRun, traces: Traces, observer: Observer) -> Plan:
        found = predict(self.subject, self.request, self.device, self.band, traces)
        cpu = resolve_device("cpu")
        session = self._session(cpu, Traces(self.subject.source, cpu, observer), run, observer)
        check = check_on_cpu(self.subject, session)
        scaled = scale(
            found.estimate.recipe, self.subject, self.request, traces.of(found.estimate.recipe).optimizer_name
        )
        return self._plan(
            run,
            recipe=scaled.recipe,
            estimate=found.estimate,
            chosen=None,
            trials=session.trials,
            verdicts=found.verdicts,
            reasons=(*found.reasons, *_sentence(scaled.remark)),
            notes=(*found.notes, check_note(check), *_accumulation_notes(scaled.recipe, traces)),
        )

    def _plan(
        self,
        run: JournalRun,
        *,
        recipe: Recipe,
        estimate: Estimate,
        chosen: Trial | None,
        trials: tuple[Trial, ...],
        reasons: tuple[str, ...],
        verdicts: tuple[PrecisionVerdict, ...] = (),
        notes: tuple[str, ...] = (),
    ) -> Plan:
        recipe = replace(recipe, learning_rate=recipe.learning_rate or self.subject.current.learning_rate)
        return Plan(
            run_id=run.run_id,
            workload_name=estimate.workload_name,
            device_name=self.device.name,
            device_total_bytes=self.band.total_bytes,
            min_utilisation=self.band.min_utilisation,
            max_utilisation=self.band.max_utilisation,
            current=self.subject.current,
            recipe=recipe,
            chosen=chosen,
            estimate=estimate,
            trials=trials,
            precisions=verdicts,
            reasons=reasons,
            patch=write_patch(recipe, self.subject, self.request, size_reason=self._share_of(chosen, estimate)),
            notes=notes,
        )

    def _share_of(self, chosen: Trial | None, estimate: Estimate) -> str:
        share = estimate.peak_process_bytes / self.band.total_bytes if chosen is None else chosen.utilisation or 0.0
        does = "predicted to peak" if chosen is None else "peaks"
        return f"{does} at {share:.0%} of {format_bytes(self.band.total_bytes)}"


def stored_report(store: Path, run_id: str | None) -> RunReport:
    """Read a run's facts from the journal; the last run where no id is given.

    Raises:
        StoreError: there is no journal, or no such run in it.
    """
    journal = Journal(store)
    stored = journal.latest_run() if run_id is None else journal.load(run_id)
    if stored is None:
        raise StoreError("there are no runs", where=str(journal.path), hint="memplan probe CONFIG makes one")
    return report_run(stored.run_id, stored.trials, stored.plan)


def apply_stored(store: Path, run_id: str | None) -> ConfigPatch:
    """Apply the patch of a stored plan and return it.

    Raises:
        StoreError: there is no such run.
        PatchError: the run has no patch, or the config changed since.
        OutputError: the patch cannot be written.
    """
    report = stored_report(store, run_id)
    if report.plan is None:
        raise PatchError(f"run {report.run_id} was not finished", hint="the same probe command resumes it")
    if report.plan.patch is None:
        raise PatchError(f"run {report.run_id} recommends no change")
    apply_patch(report.plan.patch)
    return report.plan.patch


def _device(text: str, budget_bytes: int | None) -> DeviceSpec:
    """Resolve a device and let a budget below its size take the size's place."""
    spec = resolve_device(text, budget_bytes=budget_bytes)
    total_bytes = min(spec.total_bytes, budget_bytes or spec.total_bytes)
    return replace(spec, total_bytes=total_bytes)


def _bytes(budget: str | int | None) -> int | None:
    return parse_bytes(budget) if isinstance(budget, str) else budget


def _subject_of(what: str | Path | UserConfig | Workload, recipe: Recipe | None) -> Subject:
    if isinstance(what, Workload):
        if recipe is None:
            raise UsageError("a workload needs recipe=memplan.Recipe(...), the setting it has now")
        return subject_of_workload(what, recipe, tuple(sys.path))
    config = what if isinstance(what, UserConfig) else read_config(Path(what))
    subject = subject_of_config(config)
    return subject if recipe is None else replace(subject, current=recipe)


def _sentence(remark: str | None) -> tuple[str, ...]:
    return () if remark is None else (f"{remark[0].upper()}{remark[1:]}.",)


def _accumulation_notes(recipe: Recipe, traces: Traces) -> tuple[str, ...]:
    if recipe.accumulation_steps > 1 and traces.of(recipe).uses_batch_norm:
        return (f"batch norm sees {recipe.micro_batch_size} samples at a time, whatever is accumulated",)
    return ()
