"""The predicted timeline in PyTorch's own memory-snapshot format, for its memory visualiser.

The format is that of ``torch.cuda.memory._snapshot()`` (documented there; torch 2.13): drag the file onto
https://pytorch.org/memory_viz, or run ``python -m torch.cuda._memory_viz trace_plot FILE``. A prediction has no clock
and no stack: the time of an entry is the number of its event in microseconds, and its frames are the labels given.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from memplan.errors import TraceError
from memplan.estimators.allocators.allocator_config import UNIT_BYTES
from memplan.estimators.allocators.caching_allocator import (
    DEFAULT_CONFIG,
    DEFAULT_STREAM,
    NO_SIDE_STREAMS,
    CachingAllocator,
    is_small,
    stream_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from memplan.estimators.allocators.allocator_config import AllocatorConfig

_POOL, _POOL_OF_GRAPHS = (0, 0), (0, 1)
_PICKLE_PROTOCOL = 4  # what the visualiser in the browser can read


def snapshot_bytes(snapshot: dict[str, Any]) -> bytes:
    """Return a snapshot as the content of a file that the visualiser opens."""
    return pickle.dumps(snapshot, protocol=_PICKLE_PROTOCOL)


def predicted_snapshot(
    block_ids: Sequence[int],
    sizes: Sequence[int],
    labels: Sequence[tuple[str, ...]],
    *,
    config: AllocatorConfig = DEFAULT_CONFIG,
    cache_returns: Collection[int] = (),
    side_streams: Mapping[int, int] = NO_SIDE_STREAMS,
    graph_streams: Collection[int] = (),
) -> dict[str, Any]:
    """Replay events and return every action of the allocator, and what it holds at the end.

    The allocator gets all it asks for: the timeline goes on where a card would be full.

    Args:
        block_ids: which block each event is about.
        sizes: bytes the event allocates for its block, as requested; 0 frees the block.
        labels: what to show for each block, innermost first, such as operator, module and phase; indexed by block.
        config: the allocator's settings.
        cache_returns: events before which what is cached is returned to the driver.
        side_streams: the stream of each block that is not made on the default stream, by block.
        graph_streams: those of them on which CUDA graphs are recorded.

    Raises:
        TraceError: a block is freed that is not allocated.
    """
    recorder = _Recorder(graph_streams=graph_streams)
    allocator = CachingAllocator(config, listener=recorder.note_segment, graph_streams=graph_streams)
    for recorder.event, (block, size_bytes) in enumerate(zip(block_ids, sizes, strict=True)):
        recorder.frames = [{"filename": "", "line": 0, "name": label} for label in labels[block]]
        if recorder.event in cache_returns:
            allocator.release_cached()
        if not size_bytes:
            recorder.free(allocator, block)
        else:
            stream = side_streams.get(block, DEFAULT_STREAM)
            recorder.allocate(allocator, stream, block, size_bytes, config.rounded_bytes(size_bytes))
    return {
        "segments": list(recorder.segments(is_expandable=config.expandable_segments)),
        "device_traces": [recorder.entries],
        "allocator_settings": {"expandable_segments": config.expandable_segments},
        "external_annotations": [],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """One block handed out; address and size in units of 512 bytes."""

    address: int
    size: int
    requested_bytes: int
    frames: list[dict[str, Any]]


@dataclass(slots=True)
class _Recorder:
    """Turns what the allocator does into entries of a trace, and remembers what it holds."""

    graph_streams: Collection[int]
    event: int = 0
    frames: list[dict[str, Any]] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)
    _live: dict[int, _Held] = field(default_factory=dict)
    _ranges: list[tuple[int, int]] = field(default_factory=list)  # held from the driver, [begin, end) in units

    def allocate(
        self, allocator: CachingAllocator, stream: int, block: int, size_bytes: int, rounded_bytes: int
    ) -> None:
        found = allocator.allocate(rounded_bytes // UNIT_BYTES, stream)
        if found is None:
            raise AssertionError("an allocator without a limit refuses nothing")
        address, size = found
        self._live[block] = _Held(address=address, size=size, requested_bytes=size_bytes, frames=self.frames)
        self._note("alloc", address, size_bytes)

    def free(self, allocator: CachingAllocator, block: int) -> None:
        held = self._live.pop(block, None)
        if held is None:
            raise TraceError(f"event {self.event} frees block {block}, which is not allocated")
        allocator.free(held.address, held.size, stream_of(held.address))
        for action in ("free_requested", "free_completed"):
            self._note(action, held.address, held.requested_bytes)

    def note_segment(self, action: str, address: int, size: int) -> None:
        self._note(action, address, size * UNIT_BYTES)
        if action in ("segment_alloc", "segment_map"):
            self._ranges = _joined([*self._ranges, (address, address + size)])
        else:
            self._ranges = _without(self._ranges, address, address + size)

    def segments(self, *, is_expandable: bool) -> Iterator[dict[str, Any]]:
        """Describe what is held now, segment by segment."""
        live = sorted(self._live.values(), key=lambda held: held.address)
        for begin, end in self._ranges:
            inside = [held for held in live if begin <= held.address < end]
            allocated_bytes = sum(held.size for held in inside) * UNIT_BYTES
            yield {
                "device": 0,
                "address": begin * UNIT_BYTES,
                "total_size": (end - begin) * UNIT_BYTES,
                "allocated_size": allocated_bytes,
                "active_size": allocated_bytes,
                "requested_size": sum(held.requested_bytes for held in inside),
                "stream": stream_of(begin),
                "segment_type": "small" if is_small(begin) else "large",
                "segment_pool_id": self._pool_of(begin),
                "is_expandable": is_expandable,
                "frames": [],
                "blocks": list(_blocks(begin, end, inside)),
            }

    def _pool_of(self, address: int) -> tuple[int, int]:
        return _POOL_OF_GRAPHS if stream_of(address) in self.graph_streams else _POOL

    def _note(self, action: str, address: int, size_bytes: int) -> None:
        self.entries.append(
            {
                "action": action,
                "addr": address * UNIT_BYTES,
                "size": size_bytes,
                "stream": stream_of(address),
                "pool_id": self._pool_of(address),
                "time_us": self.event,
                "frames": self.frames,
            }
        )


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort ranges and join those that touch; whole segments never do."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if joined and joined[-1][1] == begin:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    return joined


def _without(ranges: list[tuple[int, int]], begin: int, end: int) -> list[tuple[int, int]]:
    """Cut one range out of those it lies in."""
    rest: list[tuple[int, int]] = []
    for each_begin, each_end in ranges:
        if each_end <= begin or end <= each_begin:
            rest.append((each_begin, each_end))
            continue
        rest += [part for part in ((each_begin, begin), (end, each_end)) if part[0] < part[1]]
    return rest


def _blocks(begin: int, end: int, inside: list[_Held]) -> Iterator[dict[str, Any]]:
    """Describe a segment's blocks in order, free ones between those handed out."""
    position = begin
    for held in inside:
        if position < held.address:
            yield _block("inactive", position, held.address, 0, [])
        yield _block("active_allocated", held.address, held.address + held.size, held.requested_bytes, held.frames)
        position = held.address + held.size
    if position < end:
        yield _block("inactive", position, end, 0, [])


def _block(state: str, begin: int, end: int, requested_bytes: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "address": begin * UNIT_BYTES,
        "size": (end - begin) * UNIT_BYTES,
        "requested_size": requested_bytes,
        "state": state,
        "frames": frames,
    }
