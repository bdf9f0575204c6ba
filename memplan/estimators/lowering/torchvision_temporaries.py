"""Temporaries of torchvision's CUDA kernels (``torchvision/csrc/ops/cuda``)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from memplan.estimators.lowering.temporary_bytes import INT64_BYTES, TemporaryBytes
from memplan.units import ceil_div

if TYPE_CHECKING:
    import torch

_BOXES_OF_A_WORD = 64  # ``threadsPerBlock`` in ``nms_kernel.cu``
_MOST_IMAGES_AT_ONCE = 32  # ``kMaxParallelImgs``


def non_maximum_suppression(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Boxes sorted by score, and a bit for each pair of them (``nms_kernel.cu``)."""
    boxes: torch.Tensor = args[0]
    count = len(boxes)
    return TemporaryBytes(
        around_results=(count * INT64_BYTES + boxes.nbytes + count * ceil_div(count, _BOXES_OF_A_WORD) * INT64_BYTES,)
    )


def deformable_convolution(args: tuple[Any, ...], result: torch.Tensor) -> TemporaryBytes:
    """Columns, and twice the result, before the bias is added (``deform_conv2d_forward_kernel``)."""
    image, weight = args[:2]
    return TemporaryBytes(around_results=(2 * result.nbytes + _columns_bytes(image, weight, result),))


def deformable_convolution_backward(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Columns, and the output's gradient by groups of images (``backward_gradient_parameters``)."""
    gradient, image, weight = args[:3]
    return TemporaryBytes(after_results=(gradient.nbytes + _columns_bytes(image, weight, gradient),))


def _columns_bytes(image: torch.Tensor, weight: torch.Tensor, output: torch.Tensor) -> int:
    samples, channels = image.shape[:2]
    at_once = max((each for each in range(1, _MOST_IMAGES_AT_ONCE + 1) if samples % each == 0), default=0)
    rows = channels * weight.shape[2:].numel()
    return rows * at_once * math.prod(output.shape[2:]) * image.element_size()
