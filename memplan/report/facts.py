"""The facts of one run, as values that every renderer reads and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.recommend.knee import comparable
from memplan.recommend.speeds import fastest_run
from memplan.results import COMPONENTS, ContextBasis, RunStatus, timed_loader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.plans import Plan
    from memplan.recipe import Precision, Recipe
    from memplan.results import Estimate, LoaderSpeed, Measurement, OutcomeKind, PrecisionVerdict, Trial
    from memplan.training_checks import TrainingCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One quantity estimated and measured.

    Args:
        name: component or peak, e.g. ``activations`` or ``peak allocated``.
        estimated_bytes: None where nothing was estimated.
        measured_bytes: None where nothing was measured.
        no_error_because: why the two figures have no error to show, e.g. the estimate was itself measured; else None.
        estimated_range_bytes: the least and the most that was estimated, where the estimate says so; else None.
    """

    name: str
    estimated_bytes: int | None
    measured_bytes: int | None
    no_error_because: str | None = None
    estimated_range_bytes: tuple[int, int] | None = None

    @property
    def is_in_range(self) -> bool | None:
        """Whether what was measured lies in the estimated range; None where either is missing."""
        if self.estimated_range_bytes is None or self.measured_bytes is None:
            return None
        least, most = self.estimated_range_bytes
        return least <= self.measured_bytes <= most

    @property
    def relative_error(self) -> float | None:
        """(estimated - measured) / measured; None where either is missing or nothing was measured to relate to."""
        if self.no_error_because is not None or self.estimated_bytes is None or not self.measured_bytes:
            return None
        return (self.estimated_bytes - self.measured_bytes) / self.measured_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """One live run: its setting, where it ran, how it ended and its process peak, estimated and measured."""

    number: int
    purpose: str
    recipe: Recipe
    device_name: str
    budget_bytes: int
    outcome: OutcomeKind
    evidence: str
    fits: bool
    process: Comparison
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    peak_device_bytes: int | None
    utilisation: float | None
    samples_per_s: float | None
    typical_allocated_bytes: int | None
    typical_samples_per_s: float | None
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionRow:
    """What one precision reached, measured or, without ``samples_per_s``, estimated; ``remark`` says why or why not."""

    precision: Precision
    micro_batch_size: int | None
    utilisation: float | None
    samples_per_s: float | None
    loss_deviation: float | None
    compared_steps: int | None
    remark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """Everything a reader of one run wants to see.

    Args:
        run_id: under which the run is stored.
        subject: the trial whose components are compared; None where nothing was measured.
        components: parts of the process peak of that trial, then the peaks themselves.
        trials: every live run, in order.
        precisions: one row for each precision that was compared.
        throughput: runs of the recommended recipe at other micro-batches, smallest first; none where there is but one.
        loader: the workload's data loader; None where none was timed.
        plan: the finished plan; None for a run that came to none.
        status: whether the run came to its end.
        failure: why it failed, in one line; None for a run that did not.
        checks: what trainings with the plan really took.
    """

    run_id: str
    subject: TrialRow | None
    components: tuple[Comparison, ...]
    trials: tuple[TrialRow, ...]
    precisions: tuple[PrecisionRow, ...]
    throughput: tuple[TrialRow, ...]
    loader: LoaderSpeed | None
    plan: Plan | None
    status: RunStatus
    failure: str | None
    checks: tuple[TrainingCheck, ...]


def report_run(
    run_id: str,
    trials: Sequence[Trial],
    plan: Plan | None,
    *,
    checks: Sequence[TrainingCheck] = (),
    status: RunStatus = RunStatus.FINISHED,
    failure: str | None = None,
) -> RunReport:
    """Collect the facts of a run, whether or not it came to a plan."""
    subject = plan.chosen if plan and plan.chosen else _last_measured(trials)
    return RunReport(
        run_id=run_id,
        subject=trial_row(subject) if subject else None,
        components=compare(subject.estimate, subject.outcome.measurement) if subject else (),
        trials=tuple(trial_row(trial) for trial in trials),
        precisions=tuple(_precision_row(verdict, trials) for verdict in plan.precisions) if plan else (),
        throughput=_throughput(trials, subject) if plan and subject else (),
        loader=timed_loader(trials),
        plan=plan,
        status=status,
        failure=failure,
        checks=tuple(checks),
    )


def _throughput(trials: Sequence[Trial], subject: Trial) -> tuple[TrialRow, ...]:
    rows = tuple(trial_row(trial) for trial in comparable(trials, subject.recipe))
    return rows if len(rows) > 1 else ()


def compare(estimate: Estimate | None, measured: Measurement | None) -> tuple[Comparison, ...]:
    """Set the components of the process peak side by side, then the allocated, reserved and process peaks.

    Of a trial that ended before its peak was attributed, the components but the context are not known; on the CPU,
    neither is the allocated peak, which is read with them.
    """
    is_attributed = measured is not None and (measured.breakdown.parameters or measured.breakdown.activations)
    known = COMPONENTS if is_attributed or estimate is None else ("context",)
    components = [
        Comparison(
            name=_component_name(name, estimate, measured),
            estimated_bytes=estimate.breakdown[name] if estimate else None,
            measured_bytes=measured.breakdown[name] if measured and name in known else None,
            no_error_because=_measured_before(name, estimate),
        )
        for name in COMPONENTS
    ]
    has_reserved = measured is None or measured.peak_reserved_bytes is not None
    peaks = [
        Comparison(
            name=name.replace("_", " ").removesuffix(" bytes"),
            estimated_bytes=getattr(estimate, name) if estimate else None,
            measured_bytes=getattr(measured, name) if is_read else None,
        )
        for name, is_read in (
            ("peak_allocated_bytes", measured and (known == COMPONENTS or has_reserved)),
            ("peak_reserved_bytes", measured),
        )
    ]
    present = [row for row in components if row.estimated_bytes or row.measured_bytes]
    shown = (row for row in peaks if has_reserved or row.name != "peak reserved")
    return (*present, *shown, _process_peak(estimate, measured))


def _process_peak(estimate: Estimate | None, measured: Measurement | None) -> Comparison:
    return Comparison(
        name="peak process",
        estimated_bytes=estimate.peak_process_bytes if estimate else None,
        measured_bytes=measured.peak_process_bytes if measured else None,
        estimated_range_bytes=estimate.peak_process_range_bytes if estimate else None,
    )


def _component_name(component: str, estimate: Estimate | None, measured: Measurement | None) -> str:
    """Name a component; what a training command holds besides its parameters and their state is one component."""
    is_undivided = estimate is None and measured is not None and not measured.breakdown.activations
    if component == "temporaries" and is_undivided:
        return "activations and temporaries"
    return component.replace("_", " ")


def _measured_before(component: str, estimate: Estimate | None) -> str | None:
    """Report an estimate whose context was measured by a trial of the same run: agreement is no merit then."""
    basis = estimate.context_basis if estimate else None
    return str(basis) if component == "context" and basis is ContextBasis.FIRST_TRIAL else None


def _last_measured(trials: Sequence[Trial]) -> Trial | None:
    """Return the last trial that fits, else the last that was measured at all."""
    last_first = [trial for trial in reversed(trials) if trial.outcome.measurement]
    return next((trial for trial in last_first if trial.fits), last_first[0] if last_first else None)


def trial_row(trial: Trial) -> TrialRow:
    """Collect the facts of one trial."""
    measured = trial.outcome.measurement
    typical = measured.typical if measured else None
    return TrialRow(
        number=trial.number,
        purpose=trial.purpose,
        recipe=trial.recipe,
        device_name=trial.device_name,
        budget_bytes=trial.budget_bytes,
        outcome=trial.outcome.kind,
        evidence=trial.outcome.evidence,
        fits=trial.fits,
        process=_process_peak(trial.estimate, measured),
        peak_allocated_bytes=measured.peak_allocated_bytes if measured else None,
        peak_reserved_bytes=measured.peak_reserved_bytes if measured else None,
        peak_device_bytes=measured.peak_device_bytes if measured else None,
        utilisation=trial.utilisation,
        samples_per_s=trial.samples_per_s,
        typical_allocated_bytes=typical.peak_allocated_bytes if typical else None,
        typical_samples_per_s=typical.samples_per_s if typical else None,
        duration_s=trial.outcome.duration_s,
    )


def _precision_row(verdict: PrecisionVerdict, trials: Sequence[Trial]) -> PrecisionRow:
    best = verdict.best or verdict.estimate
    return PrecisionRow(
        precision=verdict.precision,
        micro_batch_size=best.recipe.micro_batch_size if best else None,
        utilisation=best.utilisation if best else None,
        samples_per_s=fastest_run(verdict.best.recipe, (verdict.best, *trials)) if verdict.best else None,
        loss_deviation=verdict.loss_deviation,
        compared_steps=verdict.compared_steps,
        remark=verdict.remark,
    )
