"""The memory format of what convolutions read in Inductor's kernels.

Inductor has all convolutions of a graph in two dimensions read channels-last operands, where its heuristics say that
this pays (``decide_layout_opt`` in ``torch/_inductor/graph.py``, torch 2.13). What its own kernels write for them is
laid out so from the start. Of what it is given, weights for one, it makes a copy, which also the backward pass gets.

Backward passes of convolutions read their inputs in the order of the weights' strides, which for depthwise windows is
another one: their one channel has the stride of a pixel (``convolution_backward_lowering`` in ``kernel/conv.py``).
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch._inductor.graph import GraphLowering

from memplan.estimators.fake_tensors.replaced import replaced
from memplan.estimators.lowering.inductor_values import is_joined, is_view

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import fx

_CHANNELS_LAST = "memplan_channels_last"  # of the description of nodes
_ROWS_OF_CHANNELS = "memplan_rows_of_channels"  # likewise
_IMAGE_DIMS = 4


def prefer_channels_last(graph: fx.GraphModule, *, is_inference: bool) -> None:
    """Lay out what the convolutions of a forward pass read, where Inductor would."""
    with replaced(torch.backends.mkldnn, "is_available", lambda: False):  # the tensors stand for a card's
        if not GraphLowering.decide_layout_opt(graph, is_inference=is_inference):
            return
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default):
        for operand in node.all_input_nodes[:2]:
            if operand.meta["val"].dim() != _IMAGE_DIMS:
                continue
            if is_joined(operand) and not is_view(operand):
                operand.meta[_CHANNELS_LAST] = True
            elif operand.op == "placeholder":
                copy = _copied(graph.graph, operand, node)
                operand.replace_all_uses_with(copy, delete_user_cb=functools.partial(operator.is_not, copy))


def order_by_depthwise_weights(graph: fx.GraphModule) -> None:
    """Copy what depthwise convolutions of a backward pass read to the order of their weights' strides."""
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution_backward.default):
        _gradient, operand, weights = node.all_input_nodes[:3]
        _results, channels, *window = weights.meta["val"].shape
        if channels > 1 or len(window) != _IMAGE_DIMS - 2 or max(window) == 1:
            continue
        with graph.graph.inserting_before(node):
            copy = graph.graph.call_function(torch.ops.aten.clone.default, (operand,))
        copy.meta = {**operand.meta, _CHANNELS_LAST: False, _ROWS_OF_CHANNELS: True}
        node.replace_input_with(operand, copy)


def in_preferred_layout(node: fx.Node, value: Any, operands: Sequence[Any] = ()) -> Any:
    """Return a node's value in the memory format that the node was given.

    A copy for depthwise convolutions is what was to be copied where that is not channels-last.
    """
    if node.meta.get(_ROWS_OF_CHANNELS):
        _samples, channels, height, width = value.shape
        if not operands[0].is_contiguous(memory_format=torch.channels_last):
            return operands[0]
        return value.as_strided(value.shape, (channels * height * width, width, channels * width, 1))
    if not node.meta.get(_CHANNELS_LAST):
        return value
    _samples, channels, height, width = value.shape
    return value.as_strided(value.shape, (channels * height * width, 1, channels * width, channels))


def _copied(graph: fx.Graph, operand: fx.Node, reader: fx.Node) -> fx.Node:
    with graph.inserting_before(reader):
        copy = graph.call_function(torch.ops.aten.clone.default, (operand,), {"memory_format": torch.channels_last})
    copy.meta = {**operand.meta, "val": operand.meta["val"].contiguous(memory_format=torch.channels_last)}
    return copy
