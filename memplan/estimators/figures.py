"""The figures of one timeline at one micro-batch size, on one device: pure arithmetic and an allocator replay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from memplan.devices.cards import DeviceKind
from memplan.estimators.allocators.caching_allocator import replay
from memplan.estimators.allocators.host_heap import STEP_OVERHEAD_BYTES, replay_heap
from memplan.estimators.breakdown import component_bytes, largest_shares, live_blocks_at, repeated_paths
from memplan.estimators.step_trace import PHASES
from memplan.results import BreakdownBytes, OutcomeKind, PeakShare, Phase
from memplan.units import MIB

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    import numpy.typing as npt

    from memplan.devices.cards import DeviceSpec
    from memplan.estimators.allocators.allocator_config import AllocatorConfig
    from memplan.estimators.allocators.caching_allocator import AllocatorPeaks
    from memplan.estimators.allocators.host_heap import HeapConfig
    from memplan.estimators.allocators.process_allocators import ProcessAllocators
    from memplan.estimators.step_trace import Timeline


# The step overhead was measured from before the first optimizer step, which alone imports this much of torch 2.13
# (resident set 219 to 300 MiB); the context is read after such a step and holds it already.
STEP_BEYOND_CONTEXT_BYTES = STEP_OVERHEAD_BYTES - 80 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Events of a timeline at one micro-batch size.

    Args:
        positions: index of each event in the timeline.
        blocks: block number of each event.
        requests_bytes: bytes each event allocates; 0 where it frees its block.
        block_bytes: requested bytes of every block.
        cache_returns: which of these events PyTorch returns its cached memory before, ascending.
        side_streams: the stream of each block that is not made on the default stream, by block.
        graph_streams: those of them on which CUDA graphs are recorded.
    """

    positions: npt.NDArray[np.intp]
    blocks: npt.NDArray[np.int32]
    requests_bytes: npt.NDArray[np.int64]
    block_bytes: npt.NDArray[np.int64]
    cache_returns: tuple[int, ...]
    side_streams: Mapping[int, int]
    graph_streams: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Peaks of a replayed timeline.

    Args:
        requested_bytes: largest sum of the requests alive.
        allocated_bytes: largest sum of live allocator blocks.
        reserved_bytes: largest amount held from the driver; on the CPU the resident heap, holes included.
        process_bytes: the reserved peak; on the CPU the resident heap and what a step adds to the process; no context.
        event: event of the timeline at which the allocated peak is first reached.
    """

    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    process_bytes: int
    event: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Peaks with what is alive at the instant of the allocated peak; the breakdown has no context yet."""

    peaks: Peaks
    breakdown: BreakdownBytes
    phase: Phase
    top_modules: tuple[PeakShare, ...]
    top_operators: tuple[PeakShare, ...]


def events_at(timeline: Timeline, micro_batch_size: int) -> Events:
    """Return the timeline's events at a micro-batch size; a request of zero bytes allocates nothing and is left out."""
    sizes = timeline.block_bytes(micro_batch_size)
    kept = np.flatnonzero(sizes[timeline.event_blocks] > 0)
    blocks = timeline.event_blocks[kept]
    requests = np.where(timeline.event_allocates[kept], sizes[blocks], 0)
    returns = np.searchsorted(kept, timeline.cache_returns)
    return Events(
        positions=kept,
        blocks=blocks,
        requests_bytes=requests,
        block_bytes=sizes,
        cache_returns=tuple(np.unique(returns).tolist()),
        side_streams=timeline.side_streams,
        graph_streams=timeline.graph_streams,
    )


def replay_events(
    events: Events,
    config: AllocatorConfig,
    *,
    limit_bytes: int | None = None,
    dispensable: Container[int] = (),
) -> AllocatorPeaks:
    """Replay events; a limit and blocks that are done without are as :func:`replay` has them."""
    return replay(
        events.blocks,
        events.requests_bytes,
        config=config,
        limit_bytes=limit_bytes,
        cache_returns=events.cache_returns,
        dispensable=dispensable,
        side_streams=events.side_streams,
        graph_streams=events.graph_streams,
    )


def peaks_at(timeline: Timeline, micro_batch_size: int, device: DeviceSpec, allocators: ProcessAllocators) -> Peaks:
    """Replay the timeline at a micro-batch size on the device's allocator."""
    events = events_at(timeline, micro_batch_size)
    if device.kind is DeviceKind.CPU:
        return _host_peaks(events, allocators.heap)
    peaks = replay_events(events, allocators.cuda)
    return Peaks(
        requested_bytes=peaks.peak_requested_bytes,
        allocated_bytes=peaks.peak_allocated_bytes,
        reserved_bytes=peaks.peak_reserved_bytes,
        process_bytes=peaks.peak_reserved_bytes,
        event=int(events.positions[peaks.peak_event_index]),
    )


def replay_under_limit(
    timeline: Timeline, micro_batch_size: int, config: AllocatorConfig, *, limit_bytes: int
) -> AllocatorPeaks:
    """Replay the timeline on a card where the caching allocator may hold no more than a limit.

    A convolution whose workspace cannot be had runs on another of cuDNN's engines (``try_plans`` in ``Conv_v8.cpp``),
    whose own is not counted.
    """
    events = events_at(timeline, micro_batch_size)
    workspaces = frozenset(timeline.workspaces.blocks.tolist())
    return replay_events(events, config, limit_bytes=limit_bytes, dispensable=workspaces)


def peaks_with_searches(timeline: Timeline, micro_batch_size: int, config: AllocatorConfig) -> AllocatorPeaks | None:
    """Replay the timeline with what cuDNN takes to search for algorithms; None where that is not known.

    A search takes a block when its convolution first runs, and PyTorch then empties the cache (``get_plans_from_find``
    in ``Conv_v8.cpp``). On a card without so much room it leaves out algorithms that take more than is free, which is
    not counted.
    """
    if timeline.searches is None:
        return None
    searches = timeline.searches
    sizes = searches.block_bytes(micro_batch_size).astype(np.int64)
    taken = np.flatnonzero(sizes > 0)
    events = events_at(timeline, micro_batch_size)
    at = np.searchsorted(events.positions, timeline.allocations[searches.blocks[taken]])
    blocks = np.arange(events.block_bytes.size, events.block_bytes.size + taken.size, dtype=events.blocks.dtype)
    requests = np.stack([sizes[taken], np.zeros_like(sizes[taken])], axis=1)
    searched = replace(
        events,
        blocks=np.insert(events.blocks, at.repeat(2), blocks.repeat(2)),
        requests_bytes=np.insert(events.requests_bytes, at.repeat(2), requests.ravel()),
        cache_returns=tuple(each + 2 * int(np.count_nonzero(at <= each)) for each in events.cache_returns),
    )
    return replay_events(searched, config)


def outcome_of(peaks: AllocatorPeaks) -> OutcomeKind:
    """Say how the steps of a replay end."""
    if peaks.ran_out_at is not None:
        return OutcomeKind.DEVICE_OUT_OF_MEMORY
    return OutcomeKind.ALLOCATOR_RETRIES if peaks.alloc_retries else OutcomeKind.FITS


def figures_at(timeline: Timeline, micro_batch_size: int, device: DeviceSpec, allocators: ProcessAllocators) -> Figures:
    """Replay the timeline and say what is alive at its allocated peak."""
    peaks = peaks_at(timeline, micro_batch_size, device, allocators)
    sizes = timeline.block_bytes(micro_batch_size)
    live = live_blocks_at(timeline, peaks.event)
    held = component_bytes(timeline, live, sizes)
    return Figures(
        peaks=peaks,
        breakdown=BreakdownBytes.of_blocks(held, allocator_slack=peaks.process_bytes - sum(held.values())),
        phase=PHASES[timeline.event_phases[peaks.event]],
        top_modules=largest_shares(repeated_paths(timeline.module_names), timeline.modules, live, sizes),
        top_operators=largest_shares(timeline.operator_names, timeline.operators, live, sizes),
    )


def _host_peaks(events: Events, heap_config: HeapConfig) -> Peaks:
    requests = events.requests_bytes
    levels = np.cumsum(np.where(requests > 0, requests, -events.block_bytes[events.blocks]))
    top = int(np.argmax(levels))
    peak = int(levels[top])
    heap = replay_heap(events.blocks.tolist(), requests.tolist(), config=heap_config)
    reserved = max(heap.peak_resident_bytes, peak)
    return Peaks(
        requested_bytes=peak,
        allocated_bytes=peak,
        reserved_bytes=reserved,
        process_bytes=reserved + STEP_BEYOND_CONTEXT_BYTES,
        event=int(events.positions[top]),
    )
