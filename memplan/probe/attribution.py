"""Attribute a peak: which of the blocks alive at that instant are weights, gradients, activations, ...

Pure: it takes a stream of allocations and frees with the addresses that were known at a few instants, and returns bytes
by component. Positions only have to increase: nanoseconds on the CPU, places in the event history on CUDA.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan.results import Component

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEvent:
    """One allocation (positive size) or free (negative size; only its sign counts) of the block at ``address``."""

    position: int
    address: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBlocks:
    """What the blocks at some addresses are, seen at one instant."""

    position: int
    components: Mapping[int, Component]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardSpan:
    """Where one forward pass starts and ends; what it leaves alive is kept for the backward pass."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentBlock:
    """A block that was alive before the first event."""

    address: int
    size_bytes: int
    component: Component


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributedPeak:
    """The largest sum of live blocks, and what it consists of.

    Args:
        allocated_bytes: the sum over all components.
        components: bytes by component at the instant of the peak.
        position: the instant of the peak; None where nothing was allocated after the start.
    """

    allocated_bytes: int
    components: Mapping[Component, int]
    position: int | None


def unattributed_peak(allocated_bytes: int) -> AttributedPeak:
    """Return a peak of which nothing is known but its size: temporaries throughout."""
    components = {**dict.fromkeys(Component, 0), Component.TEMPORARIES: allocated_bytes}
    return AttributedPeak(allocated_bytes=allocated_bytes, components=components, position=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    address: int
    size_bytes: int
    start: int | None
    end: int | None = None
    component: Component | None = None

    def is_alive_at(self, position: int) -> bool:
        return (self.start is None or self.start <= position) and (self.end is None or position < self.end)


def attribute_peak(
    resident: Iterable[ResidentBlock],
    events: Iterable[MemoryEvent],
    known: Sequence[KnownBlocks] = (),
    forwards: Sequence[ForwardSpan] = (),
) -> AttributedPeak:
    """Find the largest sum of live blocks and split it by component.

    A block is what it was known as at any instant of its life; else an activation where a forward pass made it and it
    was still alive at the end of that pass; else a temporary. Frees of blocks never seen are left out.
    """
    ordered = sorted(events, key=lambda event: event.position)
    blocks = _lives(resident, ordered)
    position = _peak_position(blocks, ordered)
    alive = [block for block in blocks if (block.start is None if position is None else block.is_alive_at(position))]
    components = dict.fromkeys(Component, 0)
    for block in alive:
        components[_component_of(block, known, forwards)] += block.size_bytes
    return AttributedPeak(allocated_bytes=sum(components.values()), components=components, position=position)


def _lives(resident: Iterable[ResidentBlock], events: Sequence[MemoryEvent]) -> list[_Block]:
    alive = {
        each.address: _Block(address=each.address, size_bytes=each.size_bytes, start=None, component=each.component)
        for each in resident
    }
    ended: list[_Block] = []
    for event in events:
        previous = alive.pop(event.address, None)
        if previous is not None:
            ended.append(replace(previous, end=event.position))
        if event.size_bytes > 0:
            alive[event.address] = _Block(address=event.address, size_bytes=event.size_bytes, start=event.position)
    return ended + list(alive.values())


def _peak_position(blocks: Sequence[_Block], events: Sequence[MemoryEvent]) -> int | None:
    """Return the first position of the largest sum; None where the start is not exceeded."""
    change: dict[int, int] = {event.position: 0 for event in events}
    current = sum(block.size_bytes for block in blocks if block.start is None)
    for block in blocks:
        if block.start is not None:
            change[block.start] += block.size_bytes
        if block.end is not None:
            change[block.end] -= block.size_bytes
    peak, peak_position = current, None
    for position in sorted(change):
        current += change[position]
        if current > peak:
            peak, peak_position = current, position
    return peak_position


def _component_of(block: _Block, known: Sequence[KnownBlocks], forwards: Sequence[ForwardSpan]) -> Component:
    if block.component is not None:
        return block.component
    for sight in known:
        if block.address in sight.components and block.is_alive_at(sight.position):
            return sight.components[block.address]
    for span in forwards:
        made_inside = block.start is not None and span.start <= block.start < span.end
        if made_inside and block.is_alive_at(span.end):
            return Component.ACTIVATIONS
    return Component.TEMPORARIES
