"""Concatenations whose parts Inductor's kernels write where they will lie, in a buffer that is there from the first on.

``ConcatKernel`` in ``torch/_inductor/ir.py`` and ``cat`` in ``lowering.py`` (torch 2.11 to 2.13). Others are computed
element by element, as part of the kernel that reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import fx
from torch._inductor.utils import is_pointwise_use

from memplan.estimators.lowering.torch_release import TORCH_RELEASE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch._ops import OpOverload

MOST_PARTS_IN_KERNEL = 8  # max_pointwise_cat_inputs of torch/_inductor/config.py
_COPY_OF = "memplan_copy_of"  # of the description of nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a value lies in the buffer of a concatenation.

    Args:
        buffer: the concatenation.
        dim: along which it concatenates.
        start: where the value begins.
    """

    buffer: fx.Node
    dim: int
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What is concatenated, as far as it decides how.

    Args:
        node: the value.
        is_realized: whether it is computed once and not wherever it is read.
        is_movable: whether a kernel computes it that may write it anywhere.
        is_reduced: whether it is computed from a reduction in the same kernel.
    """

    node: fx.Node
    is_realized: bool
    is_movable: bool
    is_reduced: bool


def copy_parts(graph: fx.Graph, is_written_elsewhere: Callable[[fx.Node, fx.Node], bool]) -> None:
    """Insert copies of what is concatenated where it lies elsewhere, or is of another type.

    Args:
        graph: the graph; its nodes say in ``meta["val"]`` what they return.
        is_written_elsewhere: whether a value, the first argument, has a buffer of its own before it is concatenated.
    """
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default):
        dtype = node.meta["val"].dtype
        copies: dict[fx.Node, fx.Node] = {}
        for each in dict.fromkeys(parts_of(node)):
            if each.meta["val"].dtype != dtype:
                copies[each] = _inserted(graph, node, torch.ops.prims.convert_element_type.default, each, dtype)
            elif is_written_elsewhere(each, node):
                copies[each] = _inserted(graph, node, torch.ops.aten.clone.default, each)
        node.args = ([copies.get(each, each) for each in parts_of(node)], *node.args[1:])


def parts_of(node: fx.Node) -> tuple[fx.Node, ...]:
    """Return the values that a node concatenates, in order."""
    given = node.args[0]
    return tuple(each for each in given if isinstance(each, fx.Node)) if isinstance(given, list | tuple) else ()


def has_buffer(node: fx.Node, parts: tuple[Part, ...]) -> bool:
    """Whether the parts of a concatenation are written into its buffer, rather than be computed where it is read."""
    if len(parts) > MOST_PARTS_IN_KERNEL:
        return True
    if TORCH_RELEASE >= (2, 12) and any(_is_read_besides(node, each) for each in parts):
        return True
    needs_copy = [_COPY_OF in each.node.meta or not (each.is_realized and each.is_movable) for each in parts]
    joins_readers = any(needs_copy) and all(map(is_pointwise_use, node.users))
    return not (joins_readers or (all(needs_copy) and not any(each.is_reduced for each in parts)))


def places_of(node: fx.Node, parts: tuple[Part, ...]) -> Iterator[tuple[fx.Node, Place]]:
    """Yield the parts that are written into the buffer of a concatenation, and where."""
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    along, start = int(dim) % node.meta["val"].dim(), 0  # type: ignore[arg-type]  # an integer by the operator's schema
    found: set[fx.Node] = set()
    for each in parts:
        if each.is_movable and each.node not in found:
            found.add(each.node)
            yield each.node, Place(buffer=node, dim=along, start=start)
        start += each.node.meta["val"].shape[along]


def _inserted(graph: fx.Graph, before: fx.Node, operator: OpOverload, source: fx.Node, *args: torch.dtype) -> fx.Node:
    with graph.inserting_before(before):
        copy = graph.call_function(operator, (source, *args))
    copy.meta = {**source.meta, "val": operator(source.meta["val"], *args), _COPY_OF: source}
    return copy


def _is_read_besides(node: fx.Node, part: Part) -> bool:
    """Whether a kernel would compute a part again for another reader."""
    source = part.node.meta.get(_COPY_OF, part.node)
    others = [each for each in source.users if each not in (node, part.node)]
    is_converted = part.node.meta["val"].dtype != source.meta["val"].dtype
    is_computed_again = is_converted or (source is part.node and part.is_movable and not part.is_realized)
    return bool(others) and (is_computed_again or any(map(is_pointwise_use, others)))
