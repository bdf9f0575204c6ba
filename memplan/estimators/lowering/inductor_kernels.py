"""The kernels that Inductor makes of a graph, in the order in which they run, and the buffers that they write.

Inductor joins operators that work element by element, and reductions, into kernels. A value inside of a kernel has no
buffer; one that another kernel, an operator of a library or the caller reads has. What is joined are the rules of
``torch/_inductor/graph.py``, ``ir.py`` and ``scheduler.py`` (torch 2.13), but that kernels are told apart by stages
alone: the number of calls of libraries, one after the other, that a value needs before it can be computed. Kernels of a
stage that Inductor keeps apart, because their loops differ, are taken for one.
"""

from __future__ import annotations

import heapq
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch._inductor.lowering import lowerings
from torch._ops import OpOverload

from memplan.estimators.lowering.launch_order import Step, Steps, least_order

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from torch import fx

_READS_IF_SHARED = 4  # realize_reads_threshold of torch/_inductor/config.py: what several read is written beyond these
_READS = 8  # realize_acc_reads_threshold: so is what reads more buffers, whoever reads it
_OPERATORS = 30  # realize_opcount_threshold: so is what joins more operators
_OF_LIBRARIES = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_grouped_mm", "_int_mm", "convolution", "convolution_backward"}
)
_REDUCTIONS = frozenset({
    "sum", "mean", "amax", "amin", "max", "min", "prod", "any", "argmax", "argmin", "var", "var_mean", "std", "cumsum",
    "cumprod", "logcumsumexp", "prepare_softmax_online",
})  # fmt: skip
_KEEPING_ORDER = frozenset({"view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "alias"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A kernel, or a call of a library, when it runs.

    Args:
        computes: nodes whose values are needed and were not before, in order.
        is_joined: whether it is a kernel of joined operators, which allocates no more than what it writes.
        writes: nodes whose values get a buffer; of a library's call, those are its own matter.
        in_place: the buffers that some of them take over.
        releases: nodes whose values no later launch needs.
    """

    computes: tuple[fx.Node, ...]
    is_joined: bool
    writes: tuple[fx.Node, ...]
    in_place: dict[fx.Node, fx.Node]
    releases: tuple[fx.Node, ...]


def schedule(graph: fx.Graph, donated: Collection[str] = ()) -> tuple[Launch, ...]:
    """Return what runs a graph whose operators are decomposed as Inductor has it.

    Args:
        graph: the graph; its nodes say in ``meta["val"]`` what they return.
        donated: names of inputs that may be written over.
    """
    return _Scheduler(graph, frozenset(donated)).launches()


def owner_of(node: fx.Node) -> fx.Node:
    """Return the node whose buffer holds a node's value, itself unless it returns its first operand or a part of it."""
    while is_view(node) or _mutates(node):
        node = node.all_input_nodes[0]
    return node


def is_view(node: fx.Node) -> bool:
    """Whether a node returns a part of what it was given; results of a library's call are not parts of one buffer."""
    if node.target is operator.getitem:
        return _is_joined(node.all_input_nodes[0])
    return isinstance(node.target, OpOverload) and node.target.is_view


def _is_joined(node: fx.Node) -> bool:
    """Whether a node that is no view becomes part of a kernel."""
    if not isinstance(node.target, OpOverload) or _name(node) in _OF_LIBRARIES:
        return False
    lowering = lowerings.get(node.target)
    return lowering is not None and not getattr(lowering, "_is_fallback_handler", False)


def _mutates(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable  # noqa: SLF001 - in no public attribute


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "overloadpacket", node.target)).rpartition(".")[2]


@dataclass(slots=True, kw_only=True)
class _Value:
    """What is known of a node's value.

    Args:
        reads: realized values that are read to compute it; whether all of it is read in the order of its elements.
        stage: number of calls of libraries, one after the other, before it can be computed.
        inlined: operators that are computed with it.
        is_realized: whether it is computed once and not wherever it is read.
    """

    reads: dict[fx.Node, bool]
    stage: int
    inlined: frozenset[fx.Node] = frozenset()
    is_realized: bool = False


@dataclass(slots=True)
class _Kernel:
    members: list[fx.Node] = field(default_factory=list)
    order: int = 0
    reads: dict[fx.Node, bool] = field(default_factory=dict)


class _Scheduler:
    def __init__(self, graph: fx.Graph, donated: frozenset[str]) -> None:
        self._nodes = list(graph.nodes)
        self._donated = donated
        self._positions = {node: position for position, node in enumerate(self._nodes)}
        self._joined = {node for node in self._nodes if is_view(node) or _is_joined(node)}
        self._values: dict[fx.Node, _Value] = {}
        for node in self._nodes:
            self._values[node] = self._value_of(node)
        self._written = self._find_written()

    def _value_of(self, node: fx.Node) -> _Value:
        operands = [(each, self._values[each]) for each in node.all_input_nodes]
        stage = max((value.stage for _, value in operands), default=0)
        if node not in self._joined:
            is_call = node.op == "call_function" and node.target is not operator.getitem
            return _Value(reads={node: True}, stage=stage + is_call, is_realized=True)
        reads: dict[fx.Node, bool] = {}
        inlined: set[fx.Node] = set()
        is_reduction = _name(node) in _REDUCTIONS
        for each, value in operands:
            is_same_loop = is_reduction or _elements(each) == _elements(node)
            keeps_order = is_same_loop and (not is_view(node) or _name(node) in _KEEPING_ORDER)
            for buffer, in_order in ({each: True} if value.is_realized else value.reads).items():
                reads[buffer] = reads.get(buffer, True) and in_order and keeps_order
            inlined |= frozenset() if value.is_realized else value.inlined
        if is_view(node):
            return _Value(reads=reads, stage=stage, inlined=frozenset(inlined))
        inlined.add(node)
        is_realized = (
            is_reduction
            or _mutates(node)
            or len(inlined) > _OPERATORS
            or len(reads) > (_READS_IF_SHARED if len(node.users) > 1 else _READS)
            or self._is_read_from_memory(node)
        )
        return _Value(reads=reads, stage=stage, inlined=frozenset(inlined), is_realized=is_realized)

    def _is_read_from_memory(self, node: fx.Node) -> bool:
        """Whether an operator of a library or the caller reads a value, also by way of views."""
        return any(
            self._is_read_from_memory(each) if is_view(each) else each not in self._joined for each in node.users
        )

    def _find_written(self) -> set[fx.Node]:
        """Return the joined operators whose results are written, and compute others where they are read.

        What kernels of one later stage alone read is computed there.
        """
        stages: dict[fx.Node, set[int]] = {}
        written: set[fx.Node] = set()
        for node in reversed(self._nodes):
            value = self._values[node]
            if node not in self._joined or not value.is_realized:
                continue
            readers = stages.get(node, set())
            if self._is_read_from_memory(node) or len(readers) > 1:
                written.add(node)
            elif readers:
                value.stage = max(readers)
            for each in value.reads:
                stages.setdefault(each, set()).add(value.stage)
        return written

    def launches(self) -> tuple[Launch, ...]:
        ordered = self._in_order(self._kernels())
        ordered = [ordered[number] for number in least_order(self._steps(ordered))]
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
        for number, kernel in enumerate(ordered):
            is_joined = kernel.members[0] in self._joined
            found.append(
                Launch(
                    computes=tuple(self._needed(kernel.members, computed)),
                    is_joined=is_joined,
                    writes=tuple(each for each in kernel.members if each in self._written),
                    in_place=self._in_place(kernel, last, number),
                    releases=tuple(ends.get(number, ())),
                )
            )
        outputs = tuple(self._needed(self._nodes[-1].all_input_nodes, computed))
        return (*found, Launch(computes=outputs, is_joined=True, writes=(), in_place={}, releases=()))

    def _steps(self, kernels: Sequence[_Kernel]) -> Steps:
        """Describe kernels by the buffers that they read and write; weights are held by the caller and left out."""
        numbers: dict[fx.Node, int] = {}
        for kernel in kernels:
            for each in kernel.members:
                if each in self._written or each not in self._joined:
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
            buffer_bytes={number: _size_bytes(node) for node, number in numbers.items()},
            outputs={
                numbers[owner] for each in self._nodes[-1].all_input_nodes if (owner := owner_of(each)) in numbers
            },
        )

    def _kernels(self) -> list[_Kernel]:
        """Return the kernels: realized values of a stage that read each other, and calls of libraries."""
        kernels: dict[fx.Node, _Kernel] = {}
        for node in self._nodes:
            value = self._values[node]
            if node.op != "call_function" or not value.is_realized:
                continue
            if node.target is operator.getitem and node not in self._joined:
                kernels[node] = kernels[node.all_input_nodes[0]]
                kernels[node].members.append(node)
                continue
            kernel = _Kernel(members=[node])
            kernels[node] = kernel
            for each in value.reads if node in self._joined else ():
                if each in self._joined and (self._values[each].stage == value.stage or each not in self._written):
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
        if node in self._joined:
            return self._values[node].reads
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
            if node not in self._written:
                continue
            for buffer, in_order in kernel.reads.items():
                is_free = buffer.op == "call_function" or buffer.name in self._donated
                fits = in_order and _layout(buffer) == _layout(node)
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


def _elements(node: fx.Node) -> int:
    value = node.meta.get("val")
    return value.numel() if isinstance(value, torch.Tensor) else 0


def _size_bytes(node: fx.Node) -> int:
    value = node.meta.get("val")
    tensors = value if isinstance(value, tuple | list) and _is_joined(node) else (value,)
    return sum(each.numel() * each.element_size() for each in tensors if isinstance(each, torch.Tensor))


def _layout(node: fx.Node) -> tuple[int, torch.dtype] | None:
    value = node.meta.get("val")
    return (value.numel(), value.dtype) if isinstance(value, torch.Tensor) else None
