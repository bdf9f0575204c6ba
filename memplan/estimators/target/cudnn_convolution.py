"""What cuDNN's convolutions take from the caching allocator while they run, and what of it can be told beforehand.

cuDNN chooses an algorithm by shape, card and version; the workspace that it asks for is told only on a card
(``aten/src/ATen/native/cudnn/Conv_v8.cpp``). One part follows from the layout alone. The kernels for tensor cores read
channels-last: where the tensors are not, cuDNN converts them into the workspace and back. NVIDIA's performance guide
says so (*Convolutional Layers*, on tensor layouts), and kernels seen in published profiles of Ampere to Blackwell show
which: the forward pass and the slope of the weight run ``..._tf32_..._nhwc`` or ``..._nhwckrsc_...`` kernels between
``nchwToNhwcKernel`` and ``nhwcToNchwKernel`` for input, weight and output alike. Windows of one pixel that move by one
are a plain matrix product in the layout as it is: in the same profiles MobileNetV3's run
``cutlass_80_tensorop_s1688gemm_..._nn`` and nnU-Net's ``ampere_fp16_s16816gemm_...``, with no conversion beside them.

Not counted, because only a card tells: workspaces of Winograd, FFT and split-k kernels, of grouped convolutions, and
everything in benchmark mode. Images of up to four channels are read as they are, by kernels without conversion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from memplan.estimators.target.hidden_bytes import NOTHING_HIDDEN, HiddenBytes

if TYPE_CHECKING:
    from collections.abc import Callable

TENSOR_CORES_FROM = {torch.float16: (7, 0), torch.bfloat16: (8, 0), torch.float32: (8, 0)}  # fp32: as TF32
_FEW_CHANNELS = 4


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

    def forward(args: tuple[Any, ...], result: torch.Tensor) -> HiddenBytes:
        image, weight, stride, groups = args[0], args[1], args[3], args[8]
        if not is_converted(image, weight, stride, groups):
            return NOTHING_HIDDEN
        return HiddenBytes(beside=_bytes(image) + _bytes(weight) + _bytes(result))

    def backward(args: tuple[Any, ...], _result: Any) -> HiddenBytes:
        slope, image, weight, stride, groups, wanted = args[0], args[1], args[2], args[4], args[9], args[10]
        if not is_converted(image, weight, stride, groups):
            return NOTHING_HIDDEN
        converted = _bytes(slope) + _bytes(image) + _bytes(weight)
        # First the slope of the image is made, then that of the weight, each with a workspace of its own.
        return HiddenBytes(between=converted if wanted[0] else 0, beside=converted if wanted[1] else 0)

    return {"aten.convolution": forward, "aten.convolution_backward": backward}


def _is_matrix_product(weight: torch.Tensor, stride: list[int]) -> bool:
    return all(size == 1 for size in weight.shape[2:]) and all(step == 1 for step in stride)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
