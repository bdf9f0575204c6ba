"""Answers from a trace for any micro-batch size: an estimate, and the largest size within a limit. No torch."""

from __future__ import annotations

import functools
from bisect import bisect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan.crossings import last_within
from memplan.devices.card_context import context_range_bytes
from memplan.devices.cards import DeviceKind
from memplan.errors import UsageError
from memplan.estimators.allocators.process_allocators import DEFAULT_ALLOCATORS
from memplan.estimators.drawn_steps import drawn_steps
from memplan.estimators.figures import (
    Figures,
    Peaks,
    events_at,
    figures_at,
    outcome_of,
    peaks_at,
    peaks_with_searches,
    replay_under_limit,
)
from memplan.estimators.reserved_peak import ReservedPeaks
from memplan.results import COMPONENTS, BreakdownBytes, ContextBasis, Estimate, OutcomeKind
from memplan.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.devices.cards import DeviceSpec
    from memplan.estimators.allocators.process_allocators import ProcessAllocators
    from memplan.estimators.step_trace import StepTrace, Timeline
    from memplan.results import DrawnSteps

_SMALLER_SIZES = 16


def estimate(
    trace: StepTrace, *, micro_batch_size: int, device: DeviceSpec, allocators: ProcessAllocators = DEFAULT_ALLOCATORS
) -> Estimate:
    """Predict the peaks of steady-state steps at a micro-batch size.

    Args:
        trace: the traced step.
        micro_batch_size: samples of one forward pass.
        device: what the trace was lowered to.
        allocators: settings of the caching allocator and of the C library's heap.

    Raises:
        UsageError: the size is below 1, or the trace was lowered to another kind of device.
    """
    if micro_batch_size < 1:
        raise UsageError(f"micro_batch_size={micro_batch_size!r} must be a whole number of at least 1")
    _check_device(trace, device)
    step = _SizedStep(trace=trace, micro_batch_size=micro_batch_size, device=device, allocators=allocators)
    figures = step.figures()
    context_bytes = _context_bytes(trace, device)
    breakdown = replace(figures.breakdown, context=context_bytes or 0)
    missing = () if context_bytes is not None else (f"context and libraries of {device.name}",)
    at_most = None if trace.envelope is None else peaks_at(trace.envelope, micro_batch_size, device, allocators)
    return Estimate(
        workload_name=trace.workload_name,
        recipe=trace.recipe.with_micro_batch_size(micro_batch_size),
        device_name=device.name,
        device_total_bytes=device.total_bytes,
        peak_requested_bytes=figures.peaks.requested_bytes,
        peak_allocated_bytes=figures.peaks.allocated_bytes,
        peak_reserved_bytes=figures.peaks.reserved_bytes,
        peak_process_bytes=breakdown.total_bytes,
        peak_search_bytes=step.search_peak_bytes(),
        breakdown=breakdown,
        peak_phase=figures.phase,
        method=trace.method,
        outcome=step.outcome(figures.peaks),
        context_basis=ContextBasis.TRACE if device.context is None else device.context.basis,
        peak_process_range_bytes=_process_range_bytes(breakdown, device, at_most),
        drawn=step.drawn(),
        samples_vary=at_most is not None and at_most.process_bytes > figures.peaks.process_bytes,
        top_modules=figures.top_modules,
        top_operators=figures.top_operators,
        uncounted=(*trace.uncounted, *missing),
        notes=(
            *trace.notes,
            *_envelope_notes(figures.peaks, at_most),
            *_context_notes(device),
        ),
    )


def process_peak(
    trace: StepTrace, device: DeviceSpec, allocators: ProcessAllocators = DEFAULT_ALLOCATORS
) -> Callable[[int], int]:
    """Return a function from a micro-batch size of at least 1 to the process peak in bytes; it replays a size once.

    Raises:
        UsageError: the trace was lowered to another kind of device.
    """
    _check_device(trace, device)
    context_bytes = _context_bytes(trace, device) or 0
    reserved_peaks = ReservedPeaks(allocators.cuda)

    @functools.cache
    def peak_at(size: int) -> int:
        timeline = trace.timeline_at(size)
        if timeline is None:
            step = _SizedStep(trace=trace, micro_batch_size=size, device=device, allocators=allocators)
            return step.figures().peaks.process_bytes + context_bytes
        if device.kind is DeviceKind.CPU:
            return peaks_at(timeline, size, device, allocators).process_bytes + context_bytes
        return reserved_peaks.of(events_at(timeline, size)) + context_bytes

    return peak_at


def largest_micro_batch(peak_at: Callable[[int], int], *, limit_bytes: int, cap: int) -> int | None:
    """Return the largest micro-batch size up to ``cap`` that is within the limit as the next smaller ones are.

    The size is interpolated between a size that fits and one that does not, and both neighbours are replayed. The
    process peak does not quite rise with the size, as sizes share segments and workspaces differently: so that a batch
    that comes out smaller fits too, the 16 sizes below are replayed as well. None where one sample does not fit.

    Args:
        peak_at: the process peak in bytes at a size, as :func:`process_peak` returns it.
        limit_bytes: what the process may take.
        cap: the largest size that may be returned, at least 1.
    """
    if peak_at(1) > limit_bytes:
        return None
    fits = cap if peak_at(cap) <= limit_bytes else last_within(lambda size: peak_at(size) - limit_bytes, 1, cap)
    return _below_misfits(fits, peak_at, limit_bytes)


def _below_misfits(size: int, peak_at: Callable[[int], int], limit_bytes: int) -> int:
    """Step below the smallest of a size and the next smaller ones that takes more than the limit, until none does."""

    def smallest_misfit() -> int | None:
        near = range(max(size - _SMALLER_SIZES, 1), size + 1)
        return next((each for each in near if peak_at(each) > limit_bytes), None)

    while (misfit := smallest_misfit()) is not None:
        size = misfit - 1
    return size


def _check_device(trace: StepTrace, device: DeviceSpec) -> None:
    if (trace.device_kind, trace.compute_capability) != (device.kind, device.compute_capability):
        raise UsageError(
            f"the trace was lowered to a {trace.device_kind} device of compute capability {trace.compute_capability}, "
            f"not to {device.name}",
            hint="trace the step again for this device",
        )


def _envelope_notes(peaks: Peaks, at_most: Peaks | None) -> tuple[str, ...]:
    """Say what would be allocated if all samples were as large as those of the most demanding batch."""
    if at_most is None or at_most.allocated_bytes <= peaks.allocated_bytes:
        return ()
    said = "with every sample as large as in the traced batch that takes most for each, the allocated peak would be"
    return (f"{said} {format_bytes(at_most.allocated_bytes)}",)


def _context_notes(device: DeviceSpec) -> tuple[str, ...]:
    """Say when a context was measured that this run has not."""
    context = device.context
    if context is None or context.basis is not ContextBasis.CALIBRATED:
        return ()
    size = format_bytes(context.size_bytes)
    return (f"the context of {size} was measured on such a card here on {context.measured_on}",)


def _process_range_bytes(
    breakdown: BreakdownBytes, device: DeviceSpec, at_most: Peaks | None
) -> tuple[int, int] | None:
    """Return the process peak with the least and the most context and samples; None where neither is open."""
    least = most = breakdown.context
    if device.context is not None and device.context.basis is ContextBasis.CATALOGUE:
        least, most = context_range_bytes(device.compute_capability, device.sm_count)
    beside = breakdown.total_bytes - breakdown.context
    most += max(beside, 0 if at_most is None else at_most.process_bytes)
    return None if beside + least == most else (beside + least, most)


def _context_bytes(trace: StepTrace, device: DeviceSpec) -> int | None:
    context = device.context
    if context is None:
        return trace.host_context_bytes
    return context.size_bytes - (0 if trace.multiplies else context.of_products_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SizedStep:
    """A traced step at one micro-batch size, on one device and its allocators."""

    trace: StepTrace
    micro_batch_size: int
    device: DeviceSpec
    allocators: ProcessAllocators

    @property
    def timeline(self) -> Timeline | None:
        """The timeline that holds for this size; None between two traced sizes."""
        return self.trace.timeline_at(self.micro_batch_size)

    @property
    def room_bytes(self) -> int:
        """What the process may hold beside its context: what is left, and on a card no more than PyTorch may take."""
        left_bytes = self.device.total_bytes - (_context_bytes(self.trace, self.device) or 0)
        if self.device.kind is DeviceKind.CPU:
            return left_bytes
        return min(left_bytes, int(self.allocators.cuda.per_process_memory_fraction * self.device.total_bytes))

    def figures(self) -> Figures:
        """Return the replayed peaks; between two traced sizes they lie on the line through both."""
        if self.timeline is not None:
            return figures_at(self.timeline, self.micro_batch_size, self.device, self.allocators)
        of_size = self.trace.timelines_by_size
        low, high = _neighbours(sorted(of_size), self.micro_batch_size)
        small, large = (figures_at(of_size[size], size, self.device, self.allocators) for size in (low, high))
        return _on_the_line(small, large, at=(self.micro_batch_size - low) / (high - low))

    def search_peak_bytes(self) -> int | None:
        """Return what is reserved at most with cuDNN's search for algorithms; None between two traced sizes."""
        if self.timeline is None:
            return None
        peaks = peaks_with_searches(self.timeline, self.micro_batch_size, self.allocators.cuda)
        return None if peaks is None else peaks.peak_reserved_bytes

    def drawn(self) -> DrawnSteps | None:
        """Return what steps on batches drawn at random hold; None where batches are alike, and on the CPU."""
        if self.trace.drawn is None or self.device.kind is DeviceKind.CPU:
            return None
        return drawn_steps(self.trace.drawn, self.micro_batch_size, self.allocators.cuda, limit_bytes=self.room_bytes)

    def outcome(self, peaks: Peaks) -> OutcomeKind:
        """Say how the step ends; between two traced sizes one whose blocks have room is one of retries."""
        if peaks.process_bytes <= self.room_bytes:
            return OutcomeKind.FITS
        if self.device.kind is DeviceKind.CPU:
            return OutcomeKind.HOST_OUT_OF_MEMORY
        if self.timeline is not None:
            size, config = self.micro_batch_size, self.allocators.cuda
            return outcome_of(replay_under_limit(self.timeline, size, config, limit_bytes=self.room_bytes))
        has_room = peaks.allocated_bytes <= self.room_bytes
        return OutcomeKind.ALLOCATOR_RETRIES if has_room else OutcomeKind.DEVICE_OUT_OF_MEMORY


def _neighbours(traced: list[int], size: int) -> tuple[int, int]:
    """Return the two traced sizes, of several ascending ones, that another lies between or is nearest to."""
    place = min(max(bisect(traced, size), 1), len(traced) - 1)
    return traced[place - 1], traced[place]


def _on_the_line(small: Figures, large: Figures, *, at: float) -> Figures:
    def between(first: int, second: int) -> int:
        return max(0, round(first + at * (second - first)))

    parts = {name: between(small.breakdown[name], large.breakdown[name]) for name in COMPONENTS}
    breakdown = BreakdownBytes(**parts)
    peaks = Peaks(
        requested_bytes=between(small.peaks.requested_bytes, large.peaks.requested_bytes),
        allocated_bytes=between(small.peaks.allocated_bytes, large.peaks.allocated_bytes),
        reserved_bytes=between(small.peaks.reserved_bytes, large.peaks.reserved_bytes),
        process_bytes=breakdown.total_bytes,
        event=large.peaks.event,
    )
    return replace(large, peaks=peaks, breakdown=breakdown)
