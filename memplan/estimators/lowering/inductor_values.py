"""Which values of a graph Inductor computes where they are read, and which its kernels write to buffers.

A value inside of a kernel has no buffer; one that another kernel, an operator of a library or the caller reads has. The
rules are those of ``torch/_inductor/graph.py`` and ``ir.py`` (torch 2.13).
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import torch
from torch._inductor.lowering import lowerings
from torch._ops import OpOverload

from memplan.estimators.lowering.inductor_concatenation import Part, Place, copy_parts, has_buffer, parts_of, places_of

if TYPE_CHECKING:
    from torch import fx
    from torch.fx.node import Argument

_READS_IF_SHARED = 4  # realize_reads_threshold of torch/_inductor/config.py: what several read is written beyond these
_READS = 8  # realize_acc_reads_threshold: so is what reads more buffers, whoever reads it
_OPERATORS = 30  # realize_opcount_threshold: so is what joins more operators
_RESULTS_PER_SM = 64  # a reduction to as many is never split
_INNER_RESULTS_PER_SM = 2  # nor is one of what lies side by side to as many
_LEAST_SPLIT = 32  # elements of each result that are reduced in one kernel anyway
_LEAST_SPLIT_INSIDE = (
    8192  # the same where they lie side by side; half a million from capability 10 on, which is not counted
)
_LEAST_SPLIT_OUTSIDE = 128  # and where they do not: four times 32
_OF_LIBRARIES = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_grouped_mm", "_int_mm", "convolution", "convolution_backward"}
)
_GIVEN_THEIR_RESULT = frozenset({"mm", "addmm", "bmm", "baddbmm", "_scaled_mm"})
_REDUCTIONS = frozenset({
    "sum", "mean", "amax", "amin", "max", "min", "prod", "any", "argmax", "argmin", "var", "var_mean", "std", "cumsum",
    "cumprod", "logcumsumexp", "prepare_softmax_online",
})  # fmt: skip
_POOLS = frozenset({"avg_pool2d", "avg_pool3d", "_low_memory_max_pool_with_offsets"})
_GRADIENTS_OF_POOLS = frozenset({"avg_pool2d_backward", "avg_pool3d_backward", "max_pool2d_with_indices_backward"})
_SCATTERS = frozenset({"scatter", "scatter_add", "scatter_reduce", "index_put", "_unsafe_index_put"})
_KEEPING_ORDER = frozenset({"view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "alias"})


@dataclass(slots=True, kw_only=True)
class Value:
    """What is known of a node's value.

    Args:
        reads: realized values that are read to compute it; whether all of it is read in the order of its elements.
        stage: number of kernels that must have ended, one after the other, before it can be computed.
        loops: of the reductions of this stage that it is computed from, how many results each has and how many elements
            each of these is of.
        inlined: operators that are computed with it.
        is_realized: whether it is computed once and not wherever it is read.
    """

    reads: dict[fx.Node, bool]
    stage: int
    loops: frozenset[tuple[int, int]] = frozenset()
    inlined: frozenset[fx.Node] = frozenset()
    is_realized: bool = False


class Values:
    """The values of a graph's nodes.

    Args:
        graph: the graph; its operators are decomposed as Inductor has it, and ``meta["val"]`` says what they return.
        sm_count: multiprocessors of the card; None where only its memory is known, and no reduction is split.

    Attributes:
        nodes: the graph's nodes.
        joined: views, and nodes that become part of a kernel.
        of: what is known of each node's value.
        written: joined operators whose results get a buffer, or a place in one.
        places: where what is concatenated lies in the concatenation's buffer.
    """

    def __init__(self, graph: fx.Graph, sm_count: int | None) -> None:
        copy_parts(graph, _is_written_elsewhere)
        self.nodes = list(graph.nodes)
        self._ending = {node for node in self.nodes if is_scatter(node) or _is_split(node, sm_count)}
        self.joined = {node for node in self.nodes if is_view(node) or is_joined(node)}
        self._read_from_memory = self._find_read_from_memory()
        self.places: dict[fx.Node, Place] = {}
        self.of: dict[fx.Node, Value] = {}
        for node in self.nodes:
            self.of[node] = self._value_of(node)
        self.written = self._find_written()

    def _find_read_from_memory(self) -> set[fx.Node]:
        """Return the nodes whose values an operator of a library or the caller reads, also by way of views."""
        found: set[fx.Node] = set()
        for node in reversed(self.nodes):
            if any(each in found if is_view(each) else each not in self.joined for each in node.users):
                found.add(node)
        return found

    def _value_of(self, node: fx.Node) -> Value:
        if _name(node) == "cat" and node in self.joined:
            self._give_places(node)
        operands = [(each, self.of[each]) for each in node.all_input_nodes]
        stages = {each: value.stage + (each in self._ending) for each, value in operands}
        stage = max(stages.values(), default=0)
        if node not in self.joined:
            is_call = node.op == "call_function" and node.target is not operator.getitem
            return Value(reads={node: True}, stage=stage + is_call, is_realized=True)
        reads: dict[fx.Node, bool] = {}
        inlined: set[fx.Node] = set()
        is_reduction = _name(node) in _REDUCTIONS
        for each, value in operands:
            is_same_loop = is_reduction or _elements(each) == _elements(node)
            keeps_order = is_same_loop and (not is_view(node) or _name(node) in _KEEPING_ORDER)
            for buffer, in_order in ({each: True} if value.is_realized else value.reads).items():
                reads[buffer] = reads.get(buffer, True) and in_order and keeps_order
            inlined |= frozenset() if value.is_realized else value.inlined
        of_stage = (value.loops for each, value in operands if stages[each] == stage and each not in self._ending)
        loops = frozenset().union(*of_stage)
        if is_view(node):
            return Value(reads=reads, stage=stage, loops=loops, inlined=frozenset(inlined))
        inlined.add(node)
        is_realized = (
            is_reduction
            or node in self._ending
            or _mutates(node)
            or len(inlined) > _OPERATORS
            or _reads_windows(node)
            or (len(reads) > 1 and any(_name(each) in _GRADIENTS_OF_POOLS for each in node.users))
            or len(reads) > (_READS_IF_SHARED if len(node.users) > 1 else _READS)
            or node in self._read_from_memory
        )
        found = Value(reads=reads, stage=stage, loops=loops, inlined=frozenset(inlined))
        if is_realized:
            _realize(node, found)
        return found

    def _give_places(self, node: fx.Node) -> None:
        """Give what a node concatenates its place in the node's buffer, if that has one."""
        parts = tuple(map(self._part, parts_of(node)))
        if not has_buffer(node, parts):
            return
        self._ending.add(node)
        for each, place in places_of(node, parts):
            self.places[each] = place
            if not self.of[each].is_realized:
                _realize(each, self.of[each])

    def _part(self, node: fx.Node) -> Part:
        value = self.of[node]
        return Part(
            node=node,
            is_realized=value.is_realized,
            is_movable=node in self.joined and node not in self.places,
            is_reduced=bool(value.loops),
        )

    def _find_written(self) -> set[fx.Node]:
        """Return the joined operators whose results are written, and compute others where they are read.

        What kernels of one later stage alone read is computed there, if their loops are its own.
        """
        readers: dict[fx.Node, list[fx.Node]] = {}
        written: set[fx.Node] = set()
        for node in reversed(self.nodes):
            value = self.of[node]
            if node not in self.joined or not value.is_realized:
                continue
            found = readers.get(node, [])
            stages = {self.of[each].stage for each in found}
            is_kept = node in self.places or node in self._ending or node in self._read_from_memory
            if is_kept or len(stages) > 1 or not all(_is_computed_with(node, each) for each in found):
                written.add(node)
            elif stages:
                (value.stage,) = stages
            for each in value.reads:
                readers.setdefault(each, []).append(node)
        return written


def owner_of(node: fx.Node) -> fx.Node:
    """Return the node whose buffer holds a node's value, itself unless it returns its first operand or a part of it."""
    while is_view(node) or _mutates(node):
        node = node.all_input_nodes[0]
    return node


def is_view(node: fx.Node) -> bool:
    """Whether a node returns a part of what it was given; results of a library's call are not parts of one buffer."""
    if node.target is operator.getitem:
        return is_joined(node.all_input_nodes[0])
    return isinstance(node.target, OpOverload) and node.target.is_view


def is_joined(node: fx.Node) -> bool:
    """Whether a node that is no view becomes part of a kernel."""
    if not isinstance(node.target, OpOverload) or _name(node) in _OF_LIBRARIES:
        return False
    lowering = lowerings.get(node.target)
    return lowering is not None and not getattr(lowering, "_is_fallback_handler", False)


def is_scatter(node: fx.Node) -> bool:
    """Whether a node writes to places that it reads from a tensor: a kernel that ends before others read its buffer."""
    return _name(node) in _SCATTERS


def is_given_its_result(node: fx.Node) -> bool:
    """Whether an operator of a library writes to a buffer that it is given; others allocate their results."""
    return _name(node) in _GIVEN_THEIR_RESULT


def size_bytes_of(node: fx.Node) -> int:
    """Return what the buffer of a node's value takes; results of a library's call are nodes of their own."""
    value = node.meta.get("val")
    tensors = value if isinstance(value, tuple | list) and is_joined(node) else (value,)
    return sum(each.numel() * each.element_size() for each in tensors if isinstance(each, torch.Tensor))


def layout_of(node: fx.Node) -> tuple[int, torch.dtype] | None:
    """Return number and type of the elements of a node's value, by which buffers take each other's place."""
    value = node.meta.get("val")
    return (value.numel(), value.dtype) if isinstance(value, torch.Tensor) else None


def _realize(node: fx.Node, value: Value) -> None:
    """Let a value be computed once, in a kernel of a later stage where its loop is none of those that it needs."""
    value.is_realized = True
    if not all(_share_a_kernel(each, node) for each in value.loops):
        value.stage += 1
        value.loops = frozenset()
    if _name(node) in _REDUCTIONS:
        value.loops |= {_loop(node)}


def _loop(node: fx.Node) -> tuple[int, int]:
    """Return how many results a reduction has, and how many elements each of these is of."""
    results = max(_elements(node), 1)
    return results, _elements(node.all_input_nodes[0]) // results


def _share_a_kernel(loop: tuple[int, int], node: fx.Node) -> bool:
    """Whether a value can be computed in the loop of a reduction that it needs.

    Reductions need the same loop, or the same one turned round (``MixOrderReduction`` in ``scheduler.py``); others one
    of as many elements as the reduction has, or results.
    """
    results, share = loop
    if _name(node) in _REDUCTIONS:
        return _loop(node) in ((results, share), (share, results))
    return _elements(node) in (results, results * share)


def _is_written_elsewhere(node: fx.Node, concatenation: fx.Node) -> bool:
    """Whether a value has a buffer, or a layout that the caller or a library asked for, before it is concatenated."""
    if not is_joined(node) or is_view(node) or _mutates(node) or is_scatter(node):
        return True
    if any(each.op == "output" for each in node.users):
        return True
    asking = (each for each in node.users if each.op == "call_function" and not (is_joined(each) or is_view(each)))
    return any(each < concatenation for each in asking)


def _is_computed_with(node: fx.Node, reader: fx.Node) -> bool:
    """Whether a value can be computed in the kernel of another that reads it, by the loops of both."""
    if _name(node) in _REDUCTIONS:
        return _share_a_kernel(_loop(node), reader)
    looped = reader.all_input_nodes[0] if _name(reader) in _REDUCTIONS else reader
    return _elements(node) == _elements(looped)


def _is_split(node: fx.Node, sm_count: int | None) -> bool:
    """Whether a reduction takes two kernels, because its results are too few for the card.

    ``Reduction.num_splits`` in ``torch/_inductor/ir.py`` and ``reduction_split_factor`` in ``choices.py``.
    """
    if sm_count is None or _name(node) not in _REDUCTIONS:
        return False
    reduced, (results, share) = node.all_input_nodes[0], _loop(node)
    if results == 1:
        return share > _LEAST_SPLIT_INSIDE
    if share <= _LEAST_SPLIT or results >= _RESULTS_PER_SM * sm_count:
        return False
    if _reduces_innermost(node, reduced):
        return share > _LEAST_SPLIT_INSIDE and results < _INNER_RESULTS_PER_SM * sm_count
    return share > _LEAST_SPLIT_OUTSIDE


def _reduces_innermost(node: fx.Node, reduced: fx.Node) -> bool:
    """Whether the dimension whose elements lie side by side is among those that are reduced."""
    value = reduced.meta["val"]
    innermost = min(range(value.dim()), key=lambda dim: (value.stride(dim), -dim)) if value.dim() else 0
    dims = node.args[1] if len(node.args) > 1 else None
    if dims is None:
        return True
    return innermost in {each % value.dim() for each in (dims if isinstance(dims, list | tuple) else [dims])}


def _reads_windows(node: fx.Node) -> bool:
    """Whether each result is computed from so many elements that Inductor computes it once.

    Of a pool these are the window's, more than are read anywhere else; of its gradient the windows that an element lies
    in, where two take more than 30 operators.
    """
    if _name(node) in _POOLS:
        return prod(_lengths(node.args[1])) > _READS
    if _name(node) not in _GRADIENTS_OF_POOLS:
        return False
    window = _lengths(node.args[2])
    stride = (_lengths(node.args[3]) if len(node.args) > 3 else ()) or window
    return any(each > step for each, step in zip(window, stride, strict=True))


def _lengths(given: Argument) -> tuple[int, ...]:
    """Return the lengths of a window or of the steps that it takes, which an operator is given as a list."""
    return tuple(each for each in given if isinstance(each, int)) if isinstance(given, list | tuple) else ()


def _mutates(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable  # noqa: SLF001 - in no public attribute


def _name(node: fx.Node) -> str:
    """Return the name of a node's operator; empty for inputs, which are called after the values that they take."""
    return str(node.target.overloadpacket).rpartition(".")[2] if isinstance(node.target, OpOverload) else ""


def _elements(node: fx.Node) -> int:
    value = node.meta.get("val")
    first = value[0] if isinstance(value, tuple | list) and value else value
    return first.numel() if isinstance(first, torch.Tensor) else 0
