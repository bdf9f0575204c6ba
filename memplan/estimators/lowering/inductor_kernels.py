"""The kernels that Inductor makes of a graph, in the order in which they run, and the buffers that they write.

Inductor joins operators that work element by element, and reductions, into kernels: ``torch/_inductor/scheduler.py``
(torch 2.13). Here kernels are told apart by stages alone: the number of calls of libraries, scatters and reductions in
two kernels, one after the other, that a value needs before it can be computed. Kernels of a stage that Inductor keeps
apart, because their loops differ, are taken for one.
"""

from __future__ import annotations

import heapq
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan.estimators.lowering.buffer_reuse import reusing_buffers
from memplan.estimators.lowering.inductor_values import Values, is_scatter, layout_of, owner_of, size_bytes_of
from memplan.estimators.lowering.launch_order import Step, Steps, least_order
from memplan.estimators.lowering.launches import Launch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from torch import fx


def schedule(graph: fx.Graph, sm_count: int | None, donated: Collection[str] = ()) -> tuple[Launch, ...]:
    """Return what runs a graph whose operators are decomposed as Inductor has it.

    Args:
        graph: the graph; its nodes say in ``meta["val"]`` what they return.
        sm_count: multiprocessors of the card; None where only its memory is known.
        donated: names of inputs that may be written over.
    """
    return _Scheduler(Values(graph, sm_count), frozenset(donated)).launches()


@dataclass(slots=True)
class _Kernel:
    members: list[fx.Node] = field(default_factory=list)
    order: int = 0
    reads: dict[fx.Node, bool] = field(default_factory=dict)


class _Scheduler:
    def __init__(self, values: Values, donated: frozenset[str]) -> None:
        self._values = values
        self._nodes = values.nodes
        self._donated = donated
        self._shared = {*values.places, *(each.buffer for each in values.places.values())}  # buffers, and what has none
        self._positions = {node: position for position, node in enumerate(self._nodes)}

    def launches(self) -> tuple[Launch, ...]:
        ordered = self._in_order(self._kernels())
        steps = self._steps(ordered)
        order = least_order(steps)
        ordered = [ordered[number] for number in order]
        last: dict[fx.Node, int] = {}
        for number, kernel in enumerate(ordered):
            for each in (*kernel.reads, *map(owner_of, kernel.members)):
                last[each] = number
        for each in self._nodes[-1].all_input_nodes:
            last[owner_of(each)] = len(ordered)
        ends: dict[int, list[fx.Node]] = {}
        for node in self._nodes:
            ends.setdefault(last.get(owner_of(node), len(ordered)), []).append(node)
        computed: set[fx.Node] = {node for node in self._nodes if node.op in ("placeholder", "get_attr")}
        found: list[Launch] = []
        places = self._values.places
        for number, kernel in enumerate(ordered):
            written = [each for each in kernel.members if each in self._values.written]
            writes = tuple(each for each in written if each not in self._shared)
            over = self._in_place(kernel, last, number)
            found.append(
                Launch(
                    computes=tuple(self._needed(kernel.members, computed)),
                    is_joined=kernel.members[0] in self._values.joined,
                    writes=writes,
                    places={each: places[each] for each in written if each in places},
                    mutates=tuple(each for each in writes if each in over or is_scatter(each)),
                    takes_over=over,
                    releases=tuple(ends.get(number, ())),
                )
            )
        outputs = tuple(self._needed(self._nodes[-1].all_input_nodes, computed))
        found.append(
            Launch(computes=outputs, is_joined=True, writes=(), places={}, mutates=(), takes_over={}, releases=())
        )
        return reusing_buffers(found, steps.live_bytes(order))

    def _steps(self, kernels: Sequence[_Kernel]) -> Steps:
        """Describe kernels by the buffers that they read and write; weights are held by the caller and left out."""
        numbers: dict[fx.Node, int] = {}
        for kernel in kernels:
            for each in kernel.members:
                if each in self._values.written or each not in self._values.joined:
                    numbers[each] = len(numbers)
        for node in self._nodes:
            if node.op == "placeholder" and not node.name.startswith("primals_"):
                numbers[node] = len(numbers)
        return Steps(
            steps=[
                Step(
                    reads=frozenset(numbers[each] for each in kernel.reads if each in numbers),
                    writes=frozenset(numbers[each] for each in kernel.members if each in numbers),
                )
                for kernel in kernels
            ],
            buffer_bytes={
                number: 0 if node in self._values.places else size_bytes_of(node) for node, number in numbers.items()
            },
            outputs={
                numbers[owner] for each in self._nodes[-1].all_input_nodes if (owner := owner_of(each)) in numbers
            },
        )

    def _kernels(self) -> list[_Kernel]:
        """Return the kernels: realized values of a stage that read each other, and calls of libraries."""
        kernels: dict[fx.Node, _Kernel] = {}
        for node in self._nodes:
            value = self._values.of[node]
            if node.op != "call_function" or not value.is_realized:
                continue
            if node.target is operator.getitem and node not in self._values.joined:
                kernels[node] = kernels[node.all_input_nodes[0]]
                kernels[node].members.append(node)
                continue
            kernel = _Kernel(members=[node])
            kernels[node] = kernel
            for each in value.reads if node in self._values.joined else ():
                is_of_stage = self._values.of[each].stage == value.stage or each not in self._values.written
                if each in self._values.joined and is_of_stage:
                    kernel = _merge(kernels, kernel, kernels[each])
        unique = {id(each): each for each in kernels.values()}
        for kernel in unique.values():
            kernel.members.sort(key=self._positions.__getitem__)
            kernel.order = self._positions[kernel.members[0]]
            own = set(kernel.members)
            for node in kernel.members:
                for buffer, in_order in self._memory_read_by(node).items():
                    if buffer not in own:
                        kernel.reads[buffer] = kernel.reads.get(buffer, True) and in_order
        return list(unique.values())

    def _memory_read_by(self, node: fx.Node) -> dict[fx.Node, bool]:
        if node in self._values.joined:
            return self._values.of[node].reads
        return {owner_of(each): True for each in node.all_input_nodes}

    def _in_order(self, kernels: Iterable[_Kernel]) -> list[_Kernel]:
        """Return the kernels in the order of the graph, but each after what it reads."""
        places = {kernel.order: kernel for kernel in kernels}
        by_member = {node: kernel.order for kernel in kernels for node in kernel.members}
        needs = {place: {by_member[each] for each in it.reads if each in by_member} for place, it in places.items()}
        readers: dict[int, list[int]] = {}
        for place, found in needs.items():
            for each in found:
                readers.setdefault(each, []).append(place)
        ready = [place for place, found in needs.items() if not found]
        heapq.heapify(ready)
        ordered: list[_Kernel] = []
        while ready:
            place = heapq.heappop(ready)
            ordered.append(places[place])
            for reader in readers.get(place, ()):
                needs[reader].remove(place)
                if not needs[reader]:
                    heapq.heappush(ready, reader)
        return ordered

    def _needed(self, nodes: Iterable[fx.Node], computed: set[fx.Node]) -> Iterator[fx.Node]:
        """Yield nodes and what they are computed from, in order, unless they have been computed."""
        pending = [each for each in nodes if each not in computed]
        found: set[fx.Node] = set()
        while pending:
            node = pending.pop()
            if node not in found:
                found.add(node)
                pending += [each for each in node.all_input_nodes if each not in computed]
        computed |= found
        yield from sorted(found, key=self._positions.__getitem__)

    def _in_place(self, kernel: _Kernel, last: dict[fx.Node, int], number: int) -> dict[fx.Node, fx.Node]:
        found: dict[fx.Node, fx.Node] = {}
        for node in kernel.members:
            if node not in self._values.written or node in self._shared:
                continue
            for buffer, in_order in kernel.reads.items():
                is_free = buffer.name in self._donated or (buffer.op == "call_function" and not is_scatter(buffer))
                fits = in_order and layout_of(buffer) == layout_of(node) and buffer not in self._shared
                if is_free and fits and last[buffer] == number and buffer not in found.values():
                    found[node] = buffer
                    break
        return found


def _merge(kernels: dict[fx.Node, _Kernel], kept: _Kernel, other: _Kernel) -> _Kernel:
    if kept is other:
        return kept
    if len(kept.members) < len(other.members):
        kept, other = other, kept
    kept.members += other.members
    for node in other.members:
        kernels[node] = kept
    return kept
