"""What is measured: the outcomes of live trials, and what a probe concludes from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memplan.json_documents import json_ready
from memplan.notebooks import ShownAsPrinted
from memplan.recipe import Precision, Recipe
from memplan.results.breakdown import BreakdownBytes
from memplan.results.estimates import Estimate
from memplan.results.outcome_kinds import OutcomeKind

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True, kw_only=True)
class TypicalStep:
    """A step on a typical batch, beside the worst one that the rest of a measurement is about.

    Args:
        peak_allocated_bytes: tensor bytes on the CPU, ``max_memory_allocated`` on CUDA.
        samples_per_s: samples of one optimizer step over the median step time.
    """

    peak_allocated_bytes: int
    samples_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSpeed:
    """How fast the workload's own data loader makes batches while nothing is trained.

    Args:
        samples_per_s: samples over wall time, once every worker has made its first batch.
        workers: processes that make batches; 0 where the training process does.
    """

    samples_per_s: float
    workers: int

    @property
    def workers_text(self) -> str:
        """Say how many workers there are, after what they do."""
        if not self.workers:
            return "without workers"
        return f"with {self.workers} worker{'s' if self.workers > 1 else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What a live trial read from the device.

    Args:
        peak_allocated_bytes: tensor bytes on the CPU, ``max_memory_allocated`` on CUDA.
        peak_reserved_bytes: ``max_memory_reserved``; None on the CPU.
        peak_process_bytes: resident set on the CPU; reserved plus context on CUDA.
        peak_device_bytes: process peak plus what others use on the device.
        breakdown: components of the process peak, at the instant of the allocated peak.
        step_times_s: wall time of each timed optimizer step, device synchronised.
        samples_per_s: samples of one optimizer step over the median step time.
        losses: mean loss of each optimizer step, warm-up included, in order.
        alloc_retries: times the allocator had to free its cache and try again.
        loss_scale: gradient scale after the last step; None without a scaler.
        first_loss_scale: gradient scale before the first step; None without a scaler.
        skipped_steps: steps that the gradient scaler skipped because gradients overflowed.
        notes: what the device did not tell and how it was got instead, one phrase each.
        has_own_context: whether the context is that of one process alone; False where others' use may be in it.
        optimizer_name: class name of the optimizer, several with a plus sign; None where only the trace knows it.
        steps_taken: optimizer steps of a training command, which may end before it took those asked for; None for a
            workload.
        learning_rate: the highest of a training command's first optimizer, as far as its schedule says; None where it
            is not known, and for a workload.
        highest_rate_taken: the highest learning rate of its steps, in a warm-up, for instance; None likewise.
        typical: a step on a typical batch; None where the workload names none, or it did not complete.
        loader: the data loader; None where the workload names none, or another trial of the run measured it.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    peak_process_bytes: int
    peak_device_bytes: int
    breakdown: BreakdownBytes
    step_times_s: tuple[float, ...]
    samples_per_s: float
    losses: tuple[float, ...]
    alloc_retries: int = 0
    loss_scale: float | None = None
    first_loss_scale: float | None = None
    skipped_steps: int = 0
    notes: tuple[str, ...] = ()
    has_own_context: bool = True
    optimizer_name: str | None = None
    steps_taken: int | None = None
    learning_rate: float | None = None
    highest_rate_taken: float | None = None
    typical: TypicalStep | None = None
    loader: LoaderSpeed | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one trial ended, with its evidence.

    Args:
        kind: the class of ending.
        evidence: one line that says what was seen.
        duration_s: wall time of the whole trial, start of the process included.
        measurement: the readings; None where the trial ended before they were complete.
        log_tail: the end of what the trial printed, tracebacks included.
        others_before_bytes: what others used on the device before the trial; None on the CPU and where it is not known.
        others_after_bytes: the same after it.
        notes: what a reader should know of the run, such as extreme outliers in the batch, one phrase each.
        available_samples: how many the data has, where a full batch takes more; None where it was not short of them.
    """

    kind: OutcomeKind
    evidence: str
    duration_s: float
    measurement: Measurement | None = None
    log_tail: str = ""
    others_before_bytes: int | None = None
    others_after_bytes: int | None = None
    notes: tuple[str, ...] = ()
    available_samples: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One live run of one recipe.

    Args:
        number: position within the run, from 1.
        purpose: why it was run, e.g. ``current recipe`` or ``final check``.
        recipe: what was run.
        device_name: where it ran.
        budget_bytes: the memory the trial was held to.
        outcome: how it ended.
        estimate: what was predicted for this recipe on this device; None where nothing was.
    """

    number: int
    purpose: str
    recipe: Recipe
    device_name: str
    budget_bytes: int
    outcome: Outcome
    estimate: Estimate | None = None

    @property
    def utilisation(self) -> float | None:
        """Device peak over the budget; None where nothing was measured."""
        measured = self.outcome.measurement
        return None if measured is None else measured.peak_device_bytes / self.budget_bytes

    @property
    def samples_per_s(self) -> float | None:
        """Measured speed, as :class:`Measurement` has it; None where nothing was measured."""
        measured = self.outcome.measurement
        return None if measured is None else measured.samples_per_s

    @property
    def fits(self) -> bool:
        """Whether the trial completed within its budget with a finite loss."""
        return self.outcome.kind is OutcomeKind.FITS

    @property
    def failed_otherwise(self) -> bool:
        """Whether it failed for another reason than memory or too few samples: no other size can be told from it."""
        about_size = self.outcome.kind.is_too_large or self.outcome.available_samples is not None
        return not self.fits and not about_size


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult(ShownAsPrinted):
    """The micro-batch of one recipe that was found to land in the band and to run fast there, and how it was found.

    Args:
        best: the trial of the returned micro-batch.
        trials: every live run, in order.
        reached_cap: whether the search stopped at the largest micro-batch it was allowed to try.
        remark: one line on how the search ended.
    """

    best: Trial
    trials: tuple[Trial, ...]
    reached_cap: bool
    remark: str

    @property
    def recipe(self) -> Recipe:
        """The recipe at the returned micro-batch."""
        return self.best.recipe

    def __str__(self) -> str:
        """Write the recipe, its evidence and the end of the search in one line each, as ``print`` shows them."""
        found, runs = self.best, "1 trial" if len(self.trials) == 1 else f"{len(self.trials)} trials"
        return f"{found.recipe} on {found.device_name}\n{found.outcome.evidence}\n{runs}: {self.remark}"

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-ready data."""
        return {**json_ready(self)}


def timed_loader(trials: Iterable[Trial]) -> LoaderSpeed | None:
    """Return the data loader's speed, which one trial of a run reads; None where none did."""
    measured = (trial.outcome.measurement for trial in trials)
    return next((each.loader for each in measured if each is not None and each.loader is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionVerdict:
    """What one precision is worth on this device.

    Args:
        precision: the number format.
        remark: one line on what it changes, and on why it was kept or dropped.
        best: the trial of its best micro-batch; None where nothing ran or nothing fits.
        estimate: prediction at its best micro-batch; None where there is none.
        loss_deviation: largest relative difference of its first losses from fp32 on the same data and seed; None where
            either is missing.
        compared_steps: optimizer steps whose losses were compared; None where there are none.
        speed_ratio: samples/s over those of fp32 at the same setting; None where either is missing.
    """

    precision: Precision
    remark: str
    best: Trial | None = None
    estimate: Estimate | None = None
    loss_deviation: float | None = None
    compared_steps: int | None = None
    speed_ratio: float | None = None
