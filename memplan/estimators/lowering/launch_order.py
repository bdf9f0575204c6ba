"""The order in which launches of a graph hold least, as Inductor searches for it before it writes its code.

Inductor tries a few orders and keeps the one in which its buffers take least at most (``reorder_for_peak_memory`` in
``torch/_inductor/memory.py``, torch 2.13): the graph's own; that which takes what frees most as long as the peak so far
is not exceeded; and those of a search in breadth and in depth.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one launch reads and writes.

    Args:
        reads: buffers of other launches, and inputs that are freed once nothing reads them.
        writes: buffers that it allocates.
    """

    reads: frozenset[int]
    writes: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The launches of a graph in the order of its nodes, each after what it reads.

    Args:
        steps: the launches.
        buffer_bytes: size of each buffer.
        outputs: buffers that outlive the graph.
    """

    steps: Sequence[Step]
    buffer_bytes: Mapping[int, int]
    outputs: Collection[int]

    def peak_bytes(self, order: Sequence[int]) -> int:
        """Return the most that buffers take in an order of the steps."""
        return max(sum(self.buffer_bytes[each] for each in self.inputs()), *self.live_bytes(order), 0)

    def live_bytes(self, order: Sequence[int]) -> list[int]:
        """Return what buffers take during each step of an order."""
        readers = self.readers()
        waiting = {buffer: len(found) for buffer, found in readers.items()}
        live = sum(self.buffer_bytes[each] for each in self.inputs())
        found: list[int] = []
        for number in order:
            step = self.steps[number]
            live += self.size_bytes(step)
            found.append(live)
            for each in step.reads:
                waiting[each] -= 1
                if not waiting[each] and each not in self.outputs:
                    live -= self.buffer_bytes[each]
            live -= sum(self.buffer_bytes[each] for each in step.writes if not self._outlives(each, readers))
        return found

    def _outlives(self, buffer: int, readers: Mapping[int, Collection[int]]) -> bool:
        return buffer in readers or buffer in self.outputs

    def size_bytes(self, step: Step) -> int:
        """Return what a step allocates."""
        return sum(self.buffer_bytes[each] for each in step.writes)

    def inputs(self) -> set[int]:
        """Return the buffers that are there before the first step."""
        written = {each for step in self.steps for each in step.writes}
        return {each for step in self.steps for each in step.reads} - written

    def readers(self) -> dict[int, list[int]]:
        """Return the steps that read each buffer."""
        readers: dict[int, list[int]] = {}
        for number, step in enumerate(self.steps):
            for each in step.reads:
                readers.setdefault(each, []).append(number)
        return readers

    def predecessors(self) -> list[set[int]]:
        """Return the steps that each step must come after."""
        writers = {each: number for number, step in enumerate(self.steps) for each in step.writes}
        return [{writers[each] for each in step.reads if each in writers} for step in self.steps]

    def successors(self) -> list[list[int]]:
        """Return the steps that must come after each step."""
        after: list[list[int]] = [[] for _ in self.steps]
        for number, found in enumerate(self.predecessors()):
            for each in found:
                after[each].append(number)
        return after


def least_order(steps: Steps) -> list[int]:
    """Return the numbers of steps in the order that holds least; of equals the first that Inductor tries."""
    own = list(range(len(steps.steps)))
    orders = (own, _freeing_first(steps), _in_breadth(steps), _in_depth(steps))
    return min(orders, key=steps.peak_bytes)


def _freeing_first(steps: Steps) -> list[int]:
    readers = steps.readers()
    waiting = {each: len(readers.get(each, ())) + (each in steps.outputs) for each in steps.buffer_bytes}
    missing = [len(each) for each in steps.predecessors()]
    after = steps.successors()
    frees = [0] * len(missing)
    for number, step in enumerate(steps.steps):
        frees[number] += sum(steps.buffer_bytes[each] for each in step.reads if waiting[each] == 1)
        frees[number] += sum(steps.buffer_bytes[each] for each in step.writes if waiting[each] == 0)
    sizes = [steps.size_bytes(each) for each in steps.steps]
    live = sum(steps.buffer_bytes[each] for each in steps.inputs())
    peak = max(live, sum(steps.buffer_bytes[each] for each in steps.outputs))
    ready = {number for number, count in enumerate(missing) if not count}
    order: list[int] = []
    while ready:
        gap = peak - live
        number = min(ready, key=lambda each: (sizes[each] if sizes[each] > gap else 0, sizes[each] - frees[each], each))
        ready.remove(number)
        order.append(number)
        live += sizes[number]
        peak = max(peak, live)
        live -= frees[number]
        for each in after[number]:
            missing[each] -= 1
            if not missing[each]:
                ready.add(each)
        for each in steps.steps[number].reads:
            waiting[each] -= 1
            if waiting[each] == 1:
                for reader in readers[each]:
                    frees[reader] += steps.buffer_bytes[each]
    return order


def _in_breadth(steps: Steps) -> list[int]:
    before = steps.predecessors()
    missing = [len(each) for each in before]
    after = steps.successors()
    places: dict[int, int] = {}
    ready: list[tuple[list[int], int]] = [([], number) for number, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    while ready:
        _, number = heapq.heappop(ready)
        places[number] = len(places)
        for each in after[number]:
            missing[each] -= 1
            if not missing[each]:
                heapq.heappush(ready, (sorted(places[found] for found in before[each]), each))
    return list(places)


def _in_depth(steps: Steps) -> list[int]:
    before = steps.predecessors()
    weights = [
        (sum(steps.buffer_bytes[each] for each in (*step.reads, *step.writes)), number)
        for number, step in enumerate(steps.steps)
    ]
    seen: dict[int, None] = {}
    for root in sorted(range(len(before)), key=weights.__getitem__):
        pending = [root]
        while pending:
            number = pending[-1]
            if number in seen:
                pending.pop()
                continue
            missing = sorted((each for each in before[number] if each not in seen), key=weights.__getitem__)
            if missing:
                pending += reversed(missing)
            else:
                seen[number] = None
                pending.pop()
    return list(seen)
