"""Which convolutions run on cuDNN, and a rule for their workspaces where cuDNN itself cannot be queried.

PyTorch allocates the workspace of the algorithm that cuDNN's heuristics propose first, runs it, and frees the block
(``aten/src/ATen/native/cudnn/Conv_v8.cpp``). The algorithm depends on shapes, dtype, layout, card and version. Where
cuDNN is installed, :mod:`memplan.estimators.cudnn` queries it. The rule here is for where it is not, and for benchmark
mode, which takes the fastest algorithm.

Tensor cores. Their kernels read channels-last; in another layout, cuDNN copies the operands into the workspace and the
result back (NVIDIA's performance guide, *Convolutional Layers*, on tensor layouts). Published profiles of Ampere to
Blackwell show for which: the forward pass and the weight's gradient run ``..._tf32_..._nhwc`` or ``..._nhwckrsc_...``
kernels between ``nchwToNhwcKernel`` and ``nhwcToNchwKernel`` for input, weight and output. Windows of one pixel with
stride one are matrix products without a copy: MobileNetV3 runs ``cutlass_80_tensorop_s1688gemm_..._nn`` there, nnU-Net
``ampere_fp16_s16816gemm_...``. cuDNN 9.19 proposes the same for most larger windows, up to Ada without a copy of the
output in the forward pass; for windows of one pixel it copies on A100, Hopper and Blackwell.

Winograd on Volta, which has no tensor cores for single precision. Published profiles (ResNet-50 and Inception-ResNet on
V100, forward pass and gradient of the input) show ``cudnn::winograd_nonfused`` kernels for 3 x 3 windows with stride
one, from 80 channels on; up to 64, the fused ``volta_scudnn_winograd_128x128`` needs next to nothing. Unfused, input,
weight and output are transformed into the workspace, 36 elements per 4 x 4 tile of the output (Lavin and Gray, *Fast
Algorithms for Convolutional Neural Networks*). This is to the byte what cuDNN 7 returns for the 18 such shapes, in both
directions, that github.com/Slimakanzer/cudnn-benchmark lists. For Turing, cuDNN 9.19 proposes kernels that need next to
nothing.

Not counted by the rule: workspaces of FFT and split kernels, of grouped convolutions (but see
:mod:`memplan.estimators.temporaries.engines_for_cards`), and of the weight's gradient without tensor cores. Images of
up to four channels are read directly.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch._prims_common import suggest_memory_format

from memplan.estimators.lowering.contiguous_copies import convolution_layout, copies
from memplan.estimators.lowering.cudnn_depthwise import runs_depthwise_on_cudnn
from memplan.estimators.lowering.temporary_bytes import TemporaryBytes
from memplan.estimators.temporaries.convolutions import Convolution, ConvolutionWorkspace, Pass, of_each_dimension
from memplan.estimators.temporaries.engines_for_cards import depthwise_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

TENSOR_CORES_FROM = {
    torch.float16: (7, 0),
    torch.bfloat16: (8, 0),
    torch.float32: (8, 0),  # as TF32
}
_TYPES = (*TENSOR_CORES_FROM, torch.float64)
_FEW_CHANNELS = 4
_VOLUMES = 5  # dimensions of a batch of them
_VOLTA, _TURING = (7, 0), (7, 5)
_MAX_FUSED_CHANNELS = 64
_TILE_SIDE = 4  # output pixels
_TRANSFORMED_ELEMENTS = 36  # of one tile: 6 x 6 for windows of 3 x 3


def convolution_rules(capability: tuple[int, int]) -> dict[str, Callable[[tuple[Any, ...], Any], TemporaryBytes]]:
    """Return the rules for a card of a compute capability, by operator."""

    def workspace(call: Convolution) -> ConvolutionWorkspace | int:
        size_bytes = _workspace_bytes(call, capability)
        # the fastest algorithm, which benchmark mode takes, cannot be queried
        return size_bytes if torch.backends.cudnn.benchmark else ConvolutionWorkspace(call=call, size_bytes=size_bytes)

    def forward(args: tuple[Any, ...], result: torch.Tensor) -> TemporaryBytes:
        image, weight, _, stride, padding, dilation, transposed, _, groups = args[:9]
        if not _runs_on_cudnn(image, weight, (stride, dilation), transposed=transposed, groups=groups):
            return _contiguous_first(image, weight)
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
            temporaries = _contiguous_first(gradient, image, weight)
            return replace(temporaries, second_first=True) if is_planar else temporaries
        layout = convolution_layout((image, weight))
        # the gradient is converted once where its layout is another, and for each kernel where it is in none
        is_converted_first = transposed or suggest_memory_format(gradient) is not layout
        converted = copies((gradient,), layout) if is_converted_first else ()
        copied = () if converted else copies((gradient,), layout)
        call = _call((image, weight, gradient), (stride, padding, dilation), transposed=transposed)
        of_input = Pass.FORWARD if transposed else Pass.INPUT_GRADIENT
        # the gradient of the input is computed before that of the weight, each with its own workspace
        first, second = workspace(replace(call, kernel=of_input)), workspace(replace(call, kernel=Pass.WEIGHT_GRADIENT))
        return TemporaryBytes(
            throughout=(*copies((image,), layout), *converted),
            between_results=(*copied, *copies((weight,), layout), first) if wanted[0] else (),
            after_results=(*copied, second) if wanted[1] else (),
        )

    return {"aten.convolution": forward, "aten.convolution_backward": backward}


def _contiguous_first(*operands: torch.Tensor) -> TemporaryBytes:
    """Operands in the layout of ATen's own kernels, copied before the results exist (``DepthwiseConv2d.cu``)."""
    return TemporaryBytes(throughout=copies(operands, convolution_layout(operands[-2:])))


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
    if image.dim() == 3:
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
        deterministic=torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled(),
    )


def _is_channels_last(image: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether cuDNN runs it channels-last (``cudnn_conv_suggest_memory_format`` in ``ConvUtils.h``)."""
    return image.dtype is not torch.float64 and convolution_layout((image, weight)) is not torch.contiguous_format


def _workspace_bytes(call: Convolution, capability: tuple[int, int]) -> int:
    of_depthwise = depthwise_bytes(call, capability)
    if of_depthwise is not None:
        return of_depthwise
    if _VOLTA <= capability < _TURING and _uses_unfused_winograd(call):
        return _winograd_bytes(call)
    if not _is_copied_to_channels_last(call, capability):
        return 0
    numbers = sum(map(math.prod, (call.input_shape, call.weight_shape, call.output_shape)))
    return numbers * _dtype(call).itemsize


def _is_copied_to_channels_last(call: Convolution, capability: tuple[int, int]) -> bool:
    first = TENSOR_CORES_FROM.get(_dtype(call))
    return (
        first is not None
        and capability >= first
        and (call.with_tf32 or call.dtype != "float32")
        and _has_one_group(call)
        and call.weight_shape[1] > _FEW_CHANNELS
        and not call.is_matrix_product
        and not call.channels_last
    )


def _uses_unfused_winograd(call: Convolution) -> bool:
    return (
        call.kernel is not Pass.WEIGHT_GRADIENT
        and call.dtype == "float32"
        and _has_one_group(call)
        and not call.channels_last
        and call.weight_shape[2:] == (3, 3)
        and all(step == 1 for step in (*call.stride, *call.dilation))
        and min(call.weight_shape[:2]) > _MAX_FUSED_CHANNELS
    )


def _winograd_bytes(call: Convolution) -> int:
    """Return the workspace of Winograd's algorithm: the transforms of weight, input and output."""
    made = call.output_shape if call.kernel is Pass.FORWARD else call.input_shape
    rows, columns = (-(-side // _TILE_SIDE) for side in made[2:])
    tiles = made[0] * rows * columns
    channels_out, channels_in = call.weight_shape[:2]
    numbers = channels_out * channels_in + tiles * (channels_out + channels_in)
    return _TRANSFORMED_ELEMENTS * numbers * _dtype(call).itemsize


def _has_one_group(call: Convolution) -> bool:
    return call.weight_shape[1] == call.input_shape[1]


def _dtype(call: Convolution) -> torch.dtype:
    found: torch.dtype = getattr(torch, call.dtype)
    return found
