"""What memplan finds out: estimates, measurements, outcomes of trials and patches, all as values.

Every figure says which peak it is. *Allocated* is bytes in live blocks of the allocator, *reserved* is what the
allocator holds from the driver, *process* adds the context and libraries, *device* adds what others use on the card.
On the CPU no reserved peak is measured (None), process is the resident set, and device equals process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from memplan.json_documents import json_ready
from memplan.recipe import Precision, Recipe
from memplan.units import format_bytes


class Phase(StrEnum):
    """Part of a training step in which a peak falls."""

    SETUP = "setup"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER_STEP = "optimizer step"


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakdownBytes(Mapping[str, int]):
    """Where the process peak goes at one instant, in bytes; also readable as a mapping from component name to bytes.

    Args:
        parameters: weights, tied ones once.
        buffers: registered buffers, such as running statistics.
        gradients: ``.grad`` of the parameters.
        optimizer_state: what the optimizer keeps between steps.
        activations: made in the forward pass and kept for the backward pass.
        temporaries: everything else that is alive at the instant of the peak.
        inputs: the batch.
        workspaces: library workspaces that the caching allocator hands out.
        allocator_slack: held by the allocator beyond its live blocks: rounding, segments, fragmentation.
        context: CUDA context and library modules; on the CPU the resident interpreter and libraries.
    """

    parameters: int = 0
    buffers: int = 0
    gradients: int = 0
    optimizer_state: int = 0
    activations: int = 0
    temporaries: int = 0
    inputs: int = 0
    workspaces: int = 0
    allocator_slack: int = 0
    context: int = 0

    @property
    def total_bytes(self) -> int:
        """Process peak: the sum of all components."""
        return sum(self.values())

    def __getitem__(self, component: str) -> int:
        if component not in COMPONENTS:
            raise KeyError(component)
        value: int = getattr(self, component)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(COMPONENTS)

    def __len__(self) -> int:
        return len(COMPONENTS)


COMPONENTS: tuple[str, ...] = tuple(each.name for each in fields(BreakdownBytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakShare:
    """Bytes that modules or operators of one name hold at the instant of the allocated peak.

    Args:
        name: operator, or path of a module; ``*`` stands for the number of one that repeats, as in ``layers.*.mlp``.
        held_bytes: what all of that name hold together.
        holder_count: how many there are of that name.
    """

    name: str
    held_bytes: int
    holder_count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What one change to a recipe would take off the predicted process peak, by a trace of the changed step.

    Args:
        change: what would be changed, e.g. ``activation checkpointing``.
        peak_process_bytes: predicted process peak of the changed step; None where it cannot be had.
        saved_bytes: by how much that is less; negative where it is more, None where it cannot be had.
        obstacle: why it cannot be had; None where it can.
    """

    change: str
    peak_process_bytes: int | None = None
    saved_bytes: int | None = None
    obstacle: str | None = None


class ContextBasis(StrEnum):
    """Where an estimate's figure for the context comes from."""

    CATALOGUE = "reckoned from the card's multiprocessors"
    CALIBRATED = "measured on such a card here before"
    FIRST_TRIAL = "measured by the first trial"
    TRACE = "measured in the tracing process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Predicted figures for one recipe on one device, for steady-state steps with optimizer state resident.

    Args:
        workload_name: what is trained.
        recipe: the setting the figures are for.
        device_name: the card, or ``cpu``.
        device_total_bytes: what the device offers.
        peak_requested_bytes: largest sum of the tensors' own sizes.
        peak_allocated_bytes: largest sum of live allocator blocks (``max_memory_allocated``).
        peak_reserved_bytes: largest amount held from the driver (``max_memory_reserved``); on the CPU, where no trial
            can measure it, what the C library's heap is predicted to hold for tensors, holes included.
        peak_process_bytes: reserved peak plus context, on the CPU also what a step adds outside the heap; the sum of
            ``breakdown``.
        breakdown: components of the process peak.
        peak_process_range_bytes: the process peak with the least and the most that the context may take, as far as
            published figures tell, and at most with every sample as large as those of the traced batch that takes most
            for each; what ``uncounted`` names comes on top. None where the context is measured and samples are alike.
        peak_phase: part of the step in which the allocated peak falls.
        method: how the figures were obtained, e.g. ``fake-tensor trace``.
        context_basis: where the figure for the context comes from; None where there is none.
        top_modules: largest holders at the peak by module path, largest first.
        top_operators: largest holders at the peak by operator, largest first.
        uncounted: what is known to be missing, one phrase each.
        notes: what a reader should know, one sentence each.
    """

    workload_name: str
    recipe: Recipe
    device_name: str
    device_total_bytes: int
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_process_bytes: int
    breakdown: BreakdownBytes
    peak_phase: Phase
    method: str
    context_basis: ContextBasis | None = None
    peak_process_range_bytes: tuple[int, int] | None = None
    top_modules: tuple[PeakShare, ...] = ()
    top_operators: tuple[PeakShare, ...] = ()
    uncounted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def utilisation(self) -> float:
        """Process peak over the device's total; other processes on the card are not counted."""
        return self.peak_process_bytes / self.device_total_bytes

    def __str__(self) -> str:
        """Write the peaks in one line each, as ``print`` shows them in a notebook."""
        return (
            f"{self.workload_name} on {self.device_name}, {self.recipe}\n"
            f"peak allocated: {format_bytes(self.peak_allocated_bytes)}, {self.peak_phase}\n"
            f"peak reserved: {format_bytes(self.peak_reserved_bytes)}\n"
            f"peak process: {format_bytes(self.peak_process_bytes)}, {self.utilisation:.0%} of "
            f"{format_bytes(self.device_total_bytes)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON-ready data."""
        return {**json_ready(self), "utilisation": round(self.utilisation, 4)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestMicroBatch:
    """The largest micro-batch whose predicted process peak is within a share of the device.

    Args:
        precision: number format of the recipe, which is the present one otherwise.
        share: how much of the device may be used, from 0 to 1.
        limit_bytes: that share, in bytes of process peak.
        micro_batch_size: the largest size; None where not even 1 is within the limit.
        reached_cap: whether the search stopped at the largest size it was allowed to try.
    """

    precision: Precision
    share: float
    limit_bytes: int
    micro_batch_size: int | None
    reached_cap: bool


class OutcomeKind(StrEnum):
    """How a trial ended."""

    FITS = "fits"
    DEVICE_OUT_OF_MEMORY = "out of memory (device)"
    HOST_OUT_OF_MEMORY = "out of memory (host)"
    ALLOCATOR_RETRIES = "allocator retries"
    KERNEL_FAILURE = "kernel failure"
    USER_ERROR = "user error"
    NON_FINITE_LOSS = "non-finite loss"
    NEVER_STEPPED = "never stepped"
    TIMEOUT = "timeout"
    CRASH = "crash"

    @property
    def is_too_large(self) -> bool:
        """Whether a smaller micro-batch could help; true for nothing but memory."""
        return self in (
            OutcomeKind.DEVICE_OUT_OF_MEMORY,
            OutcomeKind.HOST_OUT_OF_MEMORY,
            OutcomeKind.ALLOCATOR_RETRIES,
        )


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
        notes: what the device did not tell and how it was got instead, one sentence each.
        has_own_context: whether the context is that of one process alone; False where others' use may be in it.
        optimizer_name: class name of the optimizer, several with a plus sign; None where only the trace knows it.
        typical: a step on a typical batch; None where the workload names none, or it did not complete.
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
    typical: TypicalStep | None = None


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
        others_after_bytes: likewise after it.
        notes: what a reader should know of the run, such as samples of an absurd size in the batch, one sentence each.
    """

    kind: OutcomeKind
    evidence: str
    duration_s: float
    measurement: Measurement | None = None
    log_tail: str = ""
    others_before_bytes: int | None = None
    others_after_bytes: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One live run of one recipe.

    Args:
        number: position within the run, from 1.
        purpose: why it was run, e.g. ``current recipe`` or ``confirm``.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
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

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-ready data."""
        return {each.name: json_ready(getattr(self, each.name)) for each in fields(self)}


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
        allocated_change: allocated peak over that of fp32 at the same setting, less 1; None where either is missing.
        speed_ratio: samples/s over those of fp32 at the same setting; None where either is missing.
    """

    precision: Precision
    remark: str
    best: Trial | None = None
    estimate: Estimate | None = None
    loss_deviation: float | None = None
    compared_steps: int | None = None
    allocated_change: float | None = None
    speed_ratio: float | None = None
