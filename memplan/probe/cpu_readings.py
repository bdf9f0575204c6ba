"""Readings of a trial on the CPU: the resident set from the kernel, tensor bytes from the allocator's own events.

Imports torch; child processes only. Found out by experiment with torch 2.13 on Linux:

- ``VmHWM`` of ``/proc/self/status`` is the process peak; ``ru_maxrss`` is not, because it survives ``exec``. It is read
  before the profiler starts, which inflates the heap.
- While the profiler records memory, every block that the CPU allocator hands out is an event, temporaries inside
  kernels included; the free of a block is an event only where its allocation was. So the baseline must be made of
  blocks that stay: gradients are freed first where the workload frees them.

Not counted: memory that libraries take without PyTorch's allocator (oneDNN scratch pads, NumPy); it is in the process
peak, as allocator slack. Blocks held only by C++ before the recorded step are missed in the baseline.
What :mod:`memplan.probe.bystanders` finds, such as a data set in memory, is in the process peak only, too.
"""

from __future__ import annotations

import gc
import resource
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from memplan.devices.host_memory import (
    forget_peak_resident_bytes,
    host_memory,
    peak_resident_bytes,
    private_data_bytes,
    resident_bytes,
)
from memplan.probe.attribution import AttributedPeak, MemoryEvent, ResidentBlock, attribute_peak, unattributed_peak
from memplan.probe.bystanders import bystanders
from memplan.probe.known_blocks import (
    StepSights,
    known_components,
    shortened,
    still_held,
    storage_references,
    visible_storages,
)
from memplan.probe.readings import NEAR_BUDGET_SHARE, DevicePeaks
from memplan.probe.training_loop import TrainingState, run_evaluation, run_optimizer_step, zero_gradients
from memplan.probe.trials import PROFILER_ALLOWANCE_BYTES
from memplan.results import BreakdownBytes, Component
from memplan.training.default_device import forget_default_device
from memplan.training.host_context import run_warmup_step
from memplan.units import MIB

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from torch.multiprocessing.reductions import StorageWeakRef

# What the kernel's limit allows beyond the budget, because it counts untouched pages: an eighth, 128 MiB at least,
# where the machine has as much.
_LIMIT_SLACK_SHARE = 8
_LIMIT_SLACK_BYTES = 128 * MIB
_MARK = "memplan::mark"


class CpuReadings:
    """Holds the process to a resident budget and reads its peaks.

    Args:
        budget_bytes: resident set the process is meant to stay within; allocations fail an eighth above it.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._context_bytes = 0
        self._process_bytes = 0
        self._earlier: Mapping[int, StorageWeakRef] = {}

    def start(self) -> torch.device:
        """Start torch's threads and load what every training step loads late, then cap the process."""
        run_warmup_step()  # before the limit, which counts the stacks of all threads
        headroom_bytes = host_memory().free_bytes - (self._budget_bytes - resident_bytes())
        limit_data_bytes(self._budget_bytes, slack_bytes(self._budget_bytes, headroom_bytes))
        return torch.device("cpu")

    def before_building(self) -> None:
        """Take what is resident once the user's code is imported as the context, and remember the tensors in it.

        What loading a workload took meanwhile is no training process's, and a card that it chose is not there.
        """
        forget_default_device()
        forget_peak_resident_bytes()
        self._context_bytes = resident_bytes()
        self._earlier = storage_references("cpu")

    def first_step_ended(self) -> None:
        """Do nothing: oneDNN chooses its algorithms without trying them."""

    def synchronize(self) -> None:
        """Do nothing: the CPU has finished when a call returns."""

    def held_bytes(self) -> int:
        """Return the bytes of what Python objects hold; what autograd alone holds goes with its graph."""
        return sum(visible_storages("cpu").values())

    def read_peaks(self) -> DevicePeaks:
        """Read the process peak, before the profiler inflates it, and raise the limit for the profiler."""
        self._process_bytes = peak_resident_bytes()
        raise_data_limit(PROFILER_ALLOWANCE_BYTES)
        return self._peaks(unattributed_peak(max(self._process_bytes - self._context_bytes, 0)))

    def attribute(self, state: TrainingState) -> DevicePeaks:
        """Run the attributing step and put all readings together."""
        return self._peaks(attribute_step(state, self._earlier))

    def peak_of_step(self, state: TrainingState) -> int:
        """Run one more optimizer step under the profiler and return its largest sum of tensor bytes."""
        return attribute_step(state, self._earlier).allocated_bytes

    def _peaks(self, peak: AttributedPeak) -> DevicePeaks:
        return DevicePeaks(
            allocated_bytes=peak.allocated_bytes,
            reserved_bytes=None,
            process_bytes=self._process_bytes,
            device_bytes=self._process_bytes,
            breakdown=breakdown_of(peak, process_bytes=self._process_bytes, context_bytes=self._context_bytes),
            alloc_retries=0,
        )

    def release_limits(self) -> None:
        """Lift the cap, so that a failed trial can report what happened."""
        raise_data_limit(None)

    def memory_is_full(self) -> bool:
        """Whether the resident set has come near the budget."""
        return peak_resident_bytes() >= NEAR_BUDGET_SHARE * self._budget_bytes


def slack_bytes(budget_bytes: int, headroom_bytes: int) -> int:
    """Return what the kernel's limit may allow beyond the budget.

    Args:
        budget_bytes: resident set that counts as fitting.
        headroom_bytes: what the machine has free beyond that budget; below 0 where the budget is more than it has.
    """
    wanted_bytes = max(budget_bytes // _LIMIT_SLACK_SHARE, _LIMIT_SLACK_BYTES)
    return max(min(wanted_bytes, headroom_bytes), 0)


def limit_data_bytes(budget_bytes: int, slack_bytes: int) -> None:
    """Make allocations fail once this process would hold the budget and the slack in private memory.

    The kernel's limit (``RLIMIT_DATA``) counts pages that were never touched too, hence the slack; what is resident
    now but not private data, such as libraries, is taken off the budget first.
    """
    private_now_bytes = private_data_bytes()
    limit = private_now_bytes + max(budget_bytes - resident_bytes(), 0) + slack_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def raise_data_limit(by_bytes: int | None) -> None:
    """Raise what :func:`limit_data_bytes` has set by some bytes; None lifts it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if by_bytes is None or soft == resource.RLIM_INFINITY:
        raised = hard
    else:
        raised = soft + by_bytes if hard == resource.RLIM_INFINITY else min(soft + by_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (raised, hard))


def attribute_step(state: TrainingState, earlier: Mapping[int, StorageWeakRef] | None = None) -> AttributedPeak:
    """Run one optimizer step, shortened, under the profiler and attribute its largest sum of tensor bytes.

    PyTorch reports no free of a block that was made before the profiler started (``ProfiledCPUMemoryReporter`` in
    c10/core/CPUAllocator.cpp). Where user code gave such a block back, a second step is followed, which frees what the
    first has made.

    Args:
        state: the training.
        earlier: storages from before it was built, which count only where the step has to do with them.
    """
    state, earlier = shortened(state), earlier or {}
    left_out = bystanders(state, earlier)
    peak, untold = _attributed(state, left_out)
    return _attributed(state, left_out & still_held(earlier))[0] if untold else peak


def _attributed(state: TrainingState, left_out: frozenset[int]) -> tuple[AttributedPeak, bool]:
    """Profile a step; return its peak, and whether a block that existed before was freed without an event."""
    if not state.workload.zero_grad_before_backward:
        zero_gradients(state)
    gc.collect()
    resident = _resident_blocks(state, left_out)
    sights = StepSights(state, _leave_mark)
    # there is one cycle only; without acc_events torch 2.11 warns that the events of others are lost
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        run_optimizer_step(state, sights.as_marks())
        run_evaluation(state, sights.as_marks())
    results = profiler.profiler.kineto_results if profiler.profiler is not None else None
    if results is None:
        raise RuntimeError("the profiler returned no results")
    events, marked_at = _in_order(_walk(results.experimental_event_tree()))
    peak = attribute_peak(resident, events, sights.known(marked_at), sights.forwards(marked_at))
    return peak, _has_untold_free(resident, events, visible_storages("cpu").keys())


def _has_untold_free(resident: Iterable[ResidentBlock], events: Iterable[MemoryEvent], left: Collection[int]) -> bool:
    """Whether a resident block was freed, or its address reused, without an event that frees it."""
    first_sizes = {event.address: event.size_bytes for event in reversed(list(events))}
    return any(
        first_sizes[block.address] > 0 if block.address in first_sizes else block.address not in left
        for block in resident
    )


def _resident_blocks(state: TrainingState, left_out: Collection[int]) -> list[ResidentBlock]:
    known = known_components(state)
    return [
        ResidentBlock(address=address, size_bytes=size, component=known.get(address, Component.TEMPORARIES))
        for address, size in visible_storages("cpu").items()
        if address not in left_out
    ]


def _leave_mark(number: int) -> None:
    with record_function(f"{_MARK}{number}"):
        pass


def _in_order(nodes: Iterable[Any]) -> tuple[list[MemoryEvent], dict[int, int]]:
    """Bring allocations and marks into one order, in which each has a place of its own."""
    allocation = torch._C._profiler._EventType.Allocation  # noqa: SLF001 - the only way to the addresses
    events, marked_at = [], {}
    for position, node in enumerate(sorted(nodes, key=lambda node: int(node.start_time_ns))):
        if node.tag == allocation:
            fields = node.extra_fields
            events.append(MemoryEvent(position=position, address=fields.ptr, size_bytes=fields.alloc_size))
        elif node.name.startswith(_MARK):
            marked_at[int(node.name.removeprefix(_MARK))] = position
    return events, marked_at


def _walk(nodes: Iterable[Any]) -> Iterator[Any]:
    pending = list(nodes)
    while pending:
        node = pending.pop()
        yield node
        pending.extend(node.children)


def breakdown_of(peak: AttributedPeak, *, process_bytes: int, context_bytes: int) -> BreakdownBytes:
    """Turn an attributed peak into components that add up to the process peak.

    ``context_bytes`` is what was resident before the model was built. Pages freed by then are used again by tensors,
    so where context and tensors together exceed the process peak the context is reduced; what is still too much was
    allocated but never became resident, and appears as negative allocator slack.
    """
    context = max(min(context_bytes, process_bytes - peak.allocated_bytes), 0)
    slack = process_bytes - context - peak.allocated_bytes
    return BreakdownBytes.of_blocks(peak.components, allocator_slack=slack, context=context)
