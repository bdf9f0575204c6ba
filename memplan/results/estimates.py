"""What is predicted: the peaks of a recipe, the largest micro-batch, and what a change would save."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from memplan.json_documents import json_ready
from memplan.notebooks import ShownAsPrinted
from memplan.recipe import Precision, Recipe
from memplan.results.breakdown import BreakdownBytes, PeakShare, Phase
from memplan.results.outcome_kinds import OutcomeKind
from memplan.units import format_bytes

_NOTABLE = 1.05


class ContextBasis(StrEnum):
    """Where an estimate's figure for the context comes from."""

    CATALOGUE = "reckoned, not measured"
    CALIBRATED = "measured on such a card here before"
    FIRST_TRIAL = "measured by the first trial"
    TRACE = "measured in the tracing process"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnSteps:
    """What PyTorch comes to hold in steps on batches that are drawn at random, of samples that vary in size.

    Args:
        steps: how many.
        peak_reserved_bytes: largest amount held from the driver, on a card with as much room; median of three draws.
        peak_reserved_expandable_bytes: the same with ``expandable_segments:True``.
        outcome: how the worst of the three ends on the device with nothing else on it.
    """

    steps: int
    peak_reserved_bytes: int
    peak_reserved_expandable_bytes: int
    outcome: OutcomeKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(ShownAsPrinted):
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
        peak_phase: part of the step in which the allocated peak falls.
        method: how the figures were obtained, e.g. ``fake-tensor trace``.
        peak_search_bytes: reserved peak with what cuDNN takes to search for algorithms in the first step (benchmark
            mode), on a card with as much room; in none of the other peaks. None where it does not search, or was not
            asked.
        outcome: how it ends on the device with nothing else on it: fits, out of memory, or allocator retries, where a
            request is met only once cached memory was returned to the driver.
        context_basis: where the figure for the context comes from; None where there is none.
        peak_process_range_bytes: the process peak with the least and the most that the context may take, as far as
            published figures tell, and at most with every sample as large as those of the traced batch that takes most
            for each; what ``uncounted`` names comes on top. None where the context is measured and samples are alike.
        drawn: steps on batches drawn at random; None where samples are alike, or nobody tells their sizes, and on the
            CPU.
        samples_vary: whether the upper end of that range is for larger samples than those of the batch.
        top_modules: largest holders at the peak by module path, largest first.
        top_operators: largest holders at the peak by operator, largest first.
        uncounted: what is known to be missing, one phrase each.
        notes: what a reader should know, one phrase each.
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
    peak_search_bytes: int | None = None
    outcome: OutcomeKind = OutcomeKind.FITS
    context_basis: ContextBasis | None = None
    peak_process_range_bytes: tuple[int, int] | None = None
    drawn: DrawnSteps | None = None
    samples_vary: bool = False
    top_modules: tuple[PeakShare, ...] = ()
    top_operators: tuple[PeakShare, ...] = ()
    uncounted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def utilisation(self) -> float:
        """Process peak over the device's total; other processes on the card are not counted."""
        return self.peak_process_bytes / self.device_total_bytes

    @property
    def fragments(self) -> bool:
        """Whether steps on batches drawn at random come to hold much more than the worst batch alone."""
        return self.drawn is not None and self.drawn.peak_reserved_bytes > _NOTABLE * self.peak_reserved_bytes

    def __str__(self) -> str:
        """Write the peaks in one line each, as ``print`` shows them in a notebook."""
        searched_bytes = self.peak_search_bytes or 0
        searches = searched_bytes > self.peak_reserved_bytes
        searched = f"peak reserved for cuDNN's search: {format_bytes(searched_bytes)}, first step\n" if searches else ""
        return (
            f"{self.workload_name} on {self.device_name}, {self.recipe}\n"
            f"peak allocated: {format_bytes(self.peak_allocated_bytes)}, {self.peak_phase}\n"
            f"peak reserved: {format_bytes(self.peak_reserved_bytes)}\n{searched}"
            f"peak process: {format_bytes(self.peak_process_bytes)}, {self.utilisation:.0%} of "
            f"{format_bytes(self.device_total_bytes)}{'' if self.outcome is OutcomeKind.FITS else f': {self.outcome}'}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON-ready data."""
        return {**json_ready(self), "utilisation": round(self.utilisation, 4)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestMicroBatch:
    """The largest micro-batch whose predicted process peak is within a share of the device.

    Args:
        device_name: the device.
        device_total_bytes: its memory, or the budget on it.
        precision: number format of the recipe, which is the present one otherwise.
        share: how much of the device may be used, from 0 to 1.
        limit_bytes: that share, in bytes of process peak.
        micro_batch_size: the largest size; None where not even 1 is within the limit.
        reached_cap: whether the search stopped at the largest size it was allowed to try.
    """

    device_name: str
    device_total_bytes: int
    precision: Precision
    share: float
    limit_bytes: int
    micro_batch_size: int | None
    reached_cap: bool


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
