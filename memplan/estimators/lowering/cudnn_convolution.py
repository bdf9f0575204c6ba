"""Which convolutions run on cuDNN, in which layout, and what PyTorch allocates around them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch._prims_common import suggest_memory_format

from memplan.estimators.lowering.contiguous_copies import convolution_layout, copies, laid_out_first
from memplan.estimators.lowering.cudnn_depthwise import runs_depthwise_on_cudnn
from memplan.estimators.lowering.determinism import prefers_deterministic
from memplan.estimators.lowering.temporary_bytes import TemporaryBytes
from memplan.estimators.temporaries.convolution_workspaces import workspace_bytes
from memplan.estimators.temporaries.convolutions import Convolution, ConvolutionWorkspace, Pass, of_each_dimension

if TYPE_CHECKING:
    from memplan.estimators.lowering.temporary_bytes import Rule
    from memplan.estimators.temporaries.card_generations import Generation

_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_LINES, _VOLUMES = 3, 5  # dimensions of a batch of them


def convolution_rules(generation: Generation) -> dict[str, Rule]:
    """Return the rules for a card of a generation, by operator."""

    def workspace(call: Convolution) -> ConvolutionWorkspace:
        return ConvolutionWorkspace(call=call, size_bytes=workspace_bytes(call, generation))

    def forward(args: tuple[Any, ...], result: torch.Tensor) -> TemporaryBytes:
        image, weight, _, stride, padding, dilation, transposed, _, groups = args[:9]
        if not _runs_on_cudnn(image, weight, (stride, dilation), transposed=transposed, groups=groups):
            return laid_out_first(image, weight)
        call = _call((image, weight, result), (stride, padding, dilation), transposed=transposed)
        layout = convolution_layout((image, weight))
        return TemporaryBytes(
            throughout=copies((image,), layout),
            after_results=(*copies((weight,), layout), workspace(call)),
        )

    def backward(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
        gradient, image, weight, _, stride, padding, dilation, transposed, _, groups, wanted = args[:11]
        if not _runs_on_cudnn(image, weight, (stride, dilation), transposed=transposed, groups=groups):
            # the weight's gradient first (``conv_depthwise2d_backward_cuda_out`` in ``DepthwiseConv2d.cu``)
            is_planar = _is_depthwise(image, transposed=transposed, groups=groups) and image.dim() < _VOLUMES
            temporaries = laid_out_first(gradient, image, weight)
            return replace(temporaries, second_first=True) if is_planar else temporaries
        layout = convolution_layout((image, weight))
        # the gradient is converted once where its layout is another, and for each kernel where it is in none
        is_converted_first = transposed or _own_layout(gradient) is not layout
        converted = copies((gradient,), layout) if is_converted_first else ()
        copied = () if converted else copies((gradient,), layout)
        call = _call((image, weight, gradient), (stride, padding, dilation), transposed=transposed)
        of_input = Pass.FORWARD if transposed else Pass.INPUT_GRADIENT
        # the gradient of the input is computed before that of the weight, each with its own workspace
        first, second = workspace(replace(call, kernel=of_input)), workspace(replace(call, kernel=Pass.WEIGHT_GRADIENT))
        images = copies((image,), layout)
        is_line = image.dim() == _LINES  # whose copy is the operator's own (``convolution_backward``)
        return TemporaryBytes(
            until_return=images if is_line else (),
            throughout=(*(() if is_line else images), *converted),
            between_results=(*copied, *copies((weight,), layout), first) if wanted[0] else (),
            after_results=(*copied, second) if wanted[1] else (),
        )

    return {"aten.convolution": forward, "aten.convolution_backward": backward}


def _runs_on_cudnn(
    image: torch.Tensor, weight: torch.Tensor, steps: tuple[list[int], list[int]], *, transposed: bool, groups: int
) -> bool:
    """Whether PyTorch runs the convolution on cuDNN; most depthwise ones run on a kernel of its own.

    ``use_cudnn`` and ``use_cudnn_depthwise`` in ``aten/src/ATen/native/Convolution.cpp``.

    Args:
        image: what is convolved.
        weight: its windows.
        steps: stride and dilation.
        transposed: whether input and output change places.
        groups: of channels.
    """
    if image.dtype not in _TYPES or not image.numel():
        return False
    if not _is_depthwise(image, transposed=transposed, groups=groups) or _is_channels_last(image, weight):
        return True
    return runs_depthwise_on_cudnn(image, weight, *steps)


def _is_depthwise(image: torch.Tensor, *, transposed: bool, groups: int) -> bool:
    return not transposed and bool(groups == image.shape[1] > 1)


def _call(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    windows: tuple[list[int], list[int], list[int]],
    *,
    transposed: bool,
) -> Convolution:
    """Return the forward pass of an input, a weight and an output; one spatial dimension is run as two.

    Args:
        tensors: input, weight, and output or its gradient.
        windows: stride, padding and dilation.
        transposed: whether input and output change places.
    """
    image, weight, output = tensors
    shapes = [tuple(each.shape) for each in ((output, weight, image) if transposed else tensors)]
    stride, padding, dilation = (of_each_dimension(each, image.dim() - 2) for each in windows)
    if image.dim() == _LINES:
        shapes = [(*shape[:2], 1, shape[2]) for shape in shapes]
        stride, padding, dilation = (1, *stride), (0, *padding), (1, *dilation)
    return Convolution(
        kernel=Pass.INPUT_GRADIENT if transposed else Pass.FORWARD,
        input_shape=shapes[0],
        weight_shape=shapes[1],
        output_shape=shapes[2],
        dtype=str(image.dtype).removeprefix("torch."),
        channels_last=_is_channels_last(image, weight),
        stride=stride,
        padding=padding,
        dilation=dilation,
        with_tf32=torch.backends.cudnn.conv.fp32_precision == "tf32",  # type: ignore[attr-defined]  # made at run time
        deterministic=torch.backends.cudnn.deterministic or prefers_deterministic(),
    )


def _own_layout(gradient: torch.Tensor) -> torch.memory_format:
    """Return the layout that a gradient is in; one of lines as that of images of one row (``view4d``)."""
    if gradient.dim() != _LINES:
        return suggest_memory_format(gradient)
    (_, channels, pixels), (per_sample, per_channel, per_pixel) = gradient.shape, gradient.stride()
    is_last = 0 < channels * per_channel <= per_pixel and pixels * per_pixel <= per_sample
    return torch.channels_last if is_last else torch.contiguous_format


def _is_channels_last(image: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether cuDNN runs it channels-last (``cudnn_conv_suggest_memory_format`` in ``ConvUtils.h``)."""
    return image.dtype is not torch.float64 and convolution_layout((image, weight)) is not torch.contiguous_format
