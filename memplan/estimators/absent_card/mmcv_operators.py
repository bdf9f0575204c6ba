"""What the compiled operators of mmcv allocate on a card, by the code on the host that launches their kernels.

Source: ``mmcv/ops/csrc/pytorch`` of mmcv 2.1 (``cuda/nms_cuda.cu``, ``cuda/ms_deform_attn_cuda.cu``,
``deform_conv.cpp``, ``modulated_deform_conv.cpp``); the operators of losses and of pooled regions allocate nothing.
What operators are given to write to is made by mmcv in Python.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_BOXES_OF_A_WORD = 64  # of which each box suppresses some, one bit each


def _nothing(*_: Any, **__: Any) -> None:
    """Do as operators that only write to what they are given."""


def _nms(boxes: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
    order = scores.sort(0, descending=True).indices
    in_order = boxes.index_select(0, order)
    count = boxes.shape[0]
    suppressed = order.new_empty((count, -(-count // _BOXES_OF_A_WORD)))
    kept = scores > 0
    found = order.masked_select(kept)
    del in_order, suppressed
    return found


def _deformable_attention(
    value: torch.Tensor, _shapes: torch.Tensor, _starts: torch.Tensor, locations: torch.Tensor, *_: Any, **__: Any
) -> torch.Tensor:
    samples, heads, channels = value.shape[0], *value.shape[2:]
    return value.new_zeros((samples, locations.shape[1], heads, channels)).flatten(2)


def _deform_conv_forward(
    images: torch.Tensor,
    weight: torch.Tensor,
    _offset: torch.Tensor,
    output: torch.Tensor,
    *_: torch.Tensor,
    group: int,
    im2col_step: int,
    **__: Any,
) -> None:
    columns = _columns(images, weight, output, images_at_once=im2col_step)
    ones = images.new_ones(output.shape[2:])
    samples, channels, *size = output.shape
    buffer = output.new_zeros((samples // im2col_step, channels, im2col_step, *size))
    for out, kernel, unfolded in _by_group(group, buffer[0], weight, columns):
        out.flatten(1).addmm_(kernel.flatten(1), unfolded)
    output.view(samples // im2col_step, im2col_step, channels, *size).copy_(buffer.transpose(1, 2))
    del ones


def _deform_conv_backward_input(
    images: torch.Tensor,
    _offset: torch.Tensor,
    gradient: torch.Tensor,
    _of_images: torch.Tensor,
    _of_offset: torch.Tensor,
    weight: torch.Tensor,
    *_: torch.Tensor,
    group: int,
    im2col_step: int,
    **__: Any,
) -> None:
    columns = _columns(images, weight, gradient, images_at_once=im2col_step)
    first = gradient[:im2col_step].transpose(0, 1)
    for unfolded, kernel, of_output in _by_group(group, columns, weight, first):
        unfolded.addmm_(kernel.flatten(1).t(), of_output.flatten(1), beta=0)


def _deform_conv_backward_parameters(
    images: torch.Tensor,
    _offset: torch.Tensor,
    gradient: torch.Tensor,
    of_weight: torch.Tensor,
    *_: torch.Tensor,
    group: int,
    im2col_step: int,
    **__: Any,
) -> None:
    columns = _columns(images, of_weight, gradient, images_at_once=im2col_step)
    buffer = torch.zeros_like(gradient)
    if im2col_step > 1:
        buffer = buffer.clone()
    first = buffer[:im2col_step].view(gradient.shape[1], -1)
    for found, of_output, unfolded in _by_group(group, of_weight, first, columns):
        found.flatten(1).addmm_(of_output, unfolded.t())


def _modulated_forward(
    images: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    _ones: torch.Tensor,
    _offset: torch.Tensor,
    _mask: torch.Tensor,
    output: torch.Tensor,
    *_: torch.Tensor,
    group: int,
    with_bias: bool,
    **__: Any,
) -> None:
    ones = images.new_ones(output.shape[2:])
    columns = _columns(images, weight, output, images_at_once=1)
    for out, kernel, unfolded in _by_group(group, output.zero_()[0], weight, columns):
        out.flatten(1).addmm_(kernel.flatten(1), unfolded)
    if with_bias:
        output += bias.view(1, -1, 1, 1)
    del ones


def _modulated_backward(
    images: torch.Tensor,
    weight: torch.Tensor,
    _bias: torch.Tensor,
    _ones: torch.Tensor,
    _offset: torch.Tensor,
    _mask: torch.Tensor,
    _columns_given: torch.Tensor,
    _of_images: torch.Tensor,
    of_weight: torch.Tensor,
    _of_bias: torch.Tensor,
    _of_offset: torch.Tensor,
    _of_mask: torch.Tensor,
    gradient: torch.Tensor,
    *,
    group: int,
    **_: Any,
) -> None:
    ones = images.new_ones(gradient.shape[2:])
    columns = _columns(images, weight, gradient, images_at_once=1)
    for of_output, kernel, found, unfolded in _by_group(group, gradient[0], weight, of_weight, columns):
        unfolded.addmm_(kernel.flatten(1).t(), of_output.flatten(1), beta=0)
        found.flatten(1).addmm_(of_output.flatten(1), unfolded.t())
    del ones


def _by_group(group: int, *tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Part tensors into the groups of a convolution; one image stands for all, which take the same by turns."""
    return zip(*(each.chunk(group) for each in tensors), strict=True)


def _columns(images: torch.Tensor, weight: torch.Tensor, output: torch.Tensor, *, images_at_once: int) -> torch.Tensor:
    """Return what the windows of some images are unfolded to: one column for each pixel of the output."""
    pixels = output.shape[2] * output.shape[3]
    return images.new_zeros((images.shape[1] * weight.shape[2] * weight.shape[3], images_at_once * pixels))


MMCV_OPERATORS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "nms": _nms,
        "ms_deform_attn_forward": _deformable_attention,
        "ms_deform_attn_backward": _nothing,
        "deform_conv_forward": _deform_conv_forward,
        "deform_conv_backward_input": _deform_conv_backward_input,
        "deform_conv_backward_parameters": _deform_conv_backward_parameters,
        "modulated_deform_conv_forward": _modulated_forward,
        "modulated_deform_conv_backward": _modulated_backward,
        **dict.fromkeys(
            (
                "sigmoid_focal_loss_forward",
                "sigmoid_focal_loss_backward",
                "softmax_focal_loss_forward",
                "softmax_focal_loss_backward",
                "roi_align_forward",
                "roi_align_backward",
                "roi_pool_forward",
                "roi_pool_backward",
            ),
            _nothing,
        ),
    }
)
"""Name of an operator -> what allocates as it does, given fake tensors."""
