"""Workspaces of convolution engines that cuDNN names only where there is a card, worked out from the shapes.

Matrix products. For windows of one pixel the engines are cuBLASLt's, which cuDNN leaves out where cuBLASLt finds no
card. With a cuBLASLt that always finds an algorithm, 9.19 and 9.20 propose them first: in single precision on tensor
cores (as TF32, from 8.0 on) for images of any size, in half types mostly where matrices lie at multiples of eight
bytes, and published profiles show plain matrix products there. For gradients of the weight, where other engines come
first if they take less, the smaller of the two counts. Single precision on 7.5 has them for gradients of the weight
alone. Of 6,048 passes in single precision on 7.5, 8.0, 8.6 and 9.0 this agrees to 1 MiB with what cuDNN 9.20 answers
beside such a cuBLASLt in 5,444, the bare answer in 3,323. Each card was asked about in a process of its own, because
the answers about a second one depend on the first.

Depthwise gradients of the weight, channels-last, in half precision. Beside a library of the driver, 9.20 proposes an
engine first that it leaves out elsewhere. Its workspace is eight sums of every image in single precision, channels in
multiples of 32. Of 1,470 random calls on 7.5, 8.0, 8.6, 9.0 and 12.0 this agrees to 1 MiB with what cuDNN answers there
in 1,391, the bare answer in 466. For float16 with windows of three and five pixels other engines come first as often.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from memplan.estimators.convolutions import Pass
from memplan.units import round_up

if TYPE_CHECKING:
    from memplan.estimators.convolutions import Convolution

TENSOR_CORES_FOR_SINGLE_PRECISION = (8, 0)  # as TF32
_NUMBER_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
_SUM_BYTES = 4  # single precision
_MATRIX_ALIGNMENT_BYTES = 8
_SUMS_OF_AN_IMAGE = 8
_CHANNEL_STEP = 32
# Sides of the windows for which the engine of sums is proposed first, and from which compute capability on.
_SUMMED_WINDOWS = {"bfloat16": ((3, 5, 7), (8, 0)), "float16": ((7,), (7, 5))}


def is_for_cublaslt(convolution: Convolution) -> bool:
    """Whether it is a matrix product, except as TF32 of matrices that lie at multiples of eight bytes."""
    if convolution.dtype == "float32" and convolution.with_tf32:
        return convolution.is_matrix_product
    image_bytes = prod(convolution.output_shape[2:]) * _NUMBER_BYTES[convolution.dtype]
    is_aligned = convolution.channels_last or image_bytes % _MATRIX_ALIGNMENT_BYTES == 0
    return convolution.is_matrix_product and is_aligned


def matrix_product_bytes(convolution: Convolution) -> int:
    """Return the workspace of a matrix product in cuBLASLt: gradients of the weight of single images, to be summed.

    In channels-last all pixels of all images are one matrix, and nothing is left to sum; nor is where an image is one
    pixel. What cuBLASLt itself may take is not counted.
    """
    is_split = not convolution.channels_last and prod(convolution.output_shape[2:]) > 1
    if convolution.kernel is not Pass.WEIGHT_GRADIENT or not is_split:
        return 0
    return convolution.samples * prod(convolution.weight_shape) * max(_NUMBER_BYTES[convolution.dtype], _SUM_BYTES)


def depthwise_sums_bytes(convolution: Convolution, capability: tuple[int, int]) -> int | None:
    """Return the workspace of a depthwise gradient of the weight in half precision; None where other engines run."""
    windows, first_capability = _SUMMED_WINDOWS.get(convolution.dtype, ((), (0, 0)))
    channels, per_group, *window = convolution.weight_shape
    is_summed = (
        convolution.kernel is Pass.WEIGHT_GRADIENT
        and convolution.channels_last
        and (per_group, channels) == (1, convolution.input_shape[1])
        and any(window == [side, side] for side in windows)
        and all(step == 1 for step in convolution.dilation)
        and capability >= first_capability
    )
    if not is_summed:
        return None
    padded_channels = round_up(channels, _CHANNEL_STEP)
    return _SUMS_OF_AN_IMAGE * convolution.samples * padded_channels * prod(window) * _SUM_BYTES
