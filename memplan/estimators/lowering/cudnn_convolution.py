"""What cuDNN's convolutions take from the caching allocator while they run, and what of it can be told beforehand.

cuDNN chooses an algorithm by shape, card and version; the workspace that it asks for is told only on a card
(``aten/src/ATen/native/cudnn/Conv_v8.cpp``). One part follows from the layout alone. The kernels for tensor cores read
channels-last: where the tensors are not, cuDNN converts them into the workspace and back. NVIDIA's performance guide
says so (*Convolutional Layers*, on tensor layouts), and kernels seen in published profiles of Ampere to Blackwell show
which: the forward pass and the slope of the weight run ``..._tf32_..._nhwc`` or ``..._nhwckrsc_...`` kernels between
``nchwToNhwcKernel`` and ``nhwcToNchwKernel`` for input, weight and output alike. Windows of one pixel that move by one
are a plain matrix product in the layout as it is: in the same profiles MobileNetV3's run
``cutlass_80_tensorop_s1688gemm_..._nn`` and nnU-Net's ``ampere_fp16_s16816gemm_...``, with no conversion beside them.

Volta and Turing have no tensor cores for single precision. There, published profiles (ResNet-50 and Inception-ResNet on
V100, forward pass and slope of the image) show ``cudnn::winograd_nonfused`` kernels for windows of 3 x 3 that move by
one, from 80 channels on; with 64 and fewer the transforms are fused into ``volta_scudnn_winograd_128x128``, which
takes next to nothing. Not fused, image, weight and result are transformed into the workspace, 36 numbers for each tile
of 4 x 4 of the result (Lavin and Gray, *Fast Algorithms for Convolutional Neural Networks*). That is to the byte what
cuDNN answers when asked for the workspace, for each of the 18 such shapes in both directions that
github.com/Slimakanzer/cudnn-benchmark lists.

Not counted, because only a card tells: workspaces of FFT and split-k kernels, of grouped convolutions, of the slope of
the weight without tensor cores, and everything in benchmark mode. Images of up to four channels are read as they are,
by kernels without conversion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from memplan.estimators.lowering.hidden_bytes import NOTHING_HIDDEN, HiddenBytes

if TYPE_CHECKING:
    from collections.abc import Callable

TENSOR_CORES_FROM = {torch.float16: (7, 0), torch.bfloat16: (8, 0), torch.float32: (8, 0)}  # fp32: as TF32
_FEW_CHANNELS = 4
_WINOGRAD_FROM, _WINOGRAD_BEFORE = (7, 0), (8, 0)  # Volta and Turing; no profile of an older card shows it
_FUSED_UP_TO_CHANNELS = 64
_TILE, _NUMBERS_OF_TILE = 4, 36  # pixels of a side; the transform has six on a side, for windows of three


def convolution_rules(capability: tuple[int, int]) -> dict[str, Callable[[tuple[Any, ...], Any], HiddenBytes]]:
    """Return the rules for a card of a compute capability, by operator.

    Single-precision convolutions run as TF32 where the card can, as torch's defaults have it.
    """

    def is_converted(image: torch.Tensor, weight: torch.Tensor, stride: list[int], groups: int) -> bool:
        first = TENSOR_CORES_FROM.get(image.dtype)
        return (
            first is not None
            and capability >= first
            and groups == 1
            and image.shape[1] > _FEW_CHANNELS
            and not _is_matrix_product(weight, stride)
            and image.is_contiguous()
            and weight.is_contiguous()
        )

    def is_transformed(image: torch.Tensor, weight: torch.Tensor, steps: list[int], groups: int) -> bool:
        return (
            _WINOGRAD_FROM <= capability < _WINOGRAD_BEFORE
            and image.dtype is torch.float32
            and groups == 1
            and weight.shape[2:] == (3, 3)
            and all(step == 1 for step in steps)
            and min(weight.shape[:2]) > _FUSED_UP_TO_CHANNELS
            and image.is_contiguous()
        )

    def forward(args: tuple[Any, ...], result: torch.Tensor) -> HiddenBytes:
        image, weight, stride, dilation, groups = args[0], args[1], args[3], args[5], args[8]
        if is_transformed(image, weight, [*stride, *dilation], groups):
            return HiddenBytes(beside=_transformed_bytes(weight, result))
        if not is_converted(image, weight, stride, groups):
            return NOTHING_HIDDEN
        return HiddenBytes(beside=_bytes(image) + _bytes(weight) + _bytes(result))

    def backward(args: tuple[Any, ...], _result: Any) -> HiddenBytes:
        slope, image, weight, stride, dilation = args[0], args[1], args[2], args[4], args[6]
        groups, wanted = args[9], args[10]
        if is_transformed(image, weight, [*stride, *dilation], groups):
            return HiddenBytes(between=_transformed_bytes(weight, image) if wanted[0] else 0)
        if not is_converted(image, weight, stride, groups):
            return NOTHING_HIDDEN
        converted = _bytes(slope) + _bytes(image) + _bytes(weight)
        # First the slope of the image is made, then that of the weight, each with a workspace of its own.
        return HiddenBytes(between=converted if wanted[0] else 0, beside=converted if wanted[1] else 0)

    return {"aten.convolution": forward, "aten.convolution_backward": backward}


def _transformed_bytes(weight: torch.Tensor, result: torch.Tensor) -> int:
    """Workspace of Winograd's algorithm: transforms of the weight, of what goes in and of what comes out."""
    rows, columns = (-(-side // _TILE) for side in result.shape[2:])
    tiles = result.shape[0] * rows * columns
    channels_out, channels_in = weight.shape[:2]
    numbers = channels_out * channels_in + tiles * (channels_out + channels_in)
    return _NUMBERS_OF_TILE * numbers * weight.element_size()


def _is_matrix_product(weight: torch.Tensor, stride: list[int]) -> bool:
    return all(size == 1 for size in weight.shape[2:]) and all(step == 1 for step in stride)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
