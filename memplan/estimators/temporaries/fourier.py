"""Workspaces of convolutions that are made by Fourier transforms, in single precision.

Published descriptions tell of the algorithms (Vasilache and others, *Fast Convolutional Nets With fbfft*; NVIDIA's
``CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING``), not of what is kept. That follows from cuDNN 9.20's answers.

Forward, and for the gradient of the input, images are cut into tiles of 32 x 32 pixels. Kept are the transform of every
pair of channels of the weight; of no more than two tiles of every channel of each image, for more tiles one pair after
another; and a copy of input and output. For the gradient of the weight, whole images are filled up to a power of two
and transformed, input and output twice; copies are kept of the input, and two of the output.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from memplan.estimators.temporaries.convolutions import Pass
from memplan.units import ceil_div, power_of_two_from

if TYPE_CHECKING:
    from memplan.estimators.temporaries.convolutions import Convolution

_TILE_SIDE = 32  # pixels that are read, for fewer pixels of the result
_TILES_AT_ONCE = 2
_NUMBER_BYTES = 4  # single precision


def fourier_bytes(call: Convolution) -> int:
    """Return the workspace of a convolution by Fourier transforms."""
    is_of_weight = call.kernel is Pass.WEIGHT_GRADIENT
    return _NUMBER_BYTES * (_numbers_of_whole_images(call) if is_of_weight else _numbers_of_tiles(call))


def _numbers_of_tiles(call: Convolution) -> int:
    made = call.output_shape if call.kernel is Pass.FORWARD else call.input_shape
    tiles = prod(
        ceil_div(side, max(_TILE_SIDE - width + 1, 1)) for side, width in zip(made[2:], call.window, strict=True)
    )
    channels_out, channels_in_of_group = call.weight_shape[:2]
    of_images = call.samples * min(tiles, _TILES_AT_ONCE) * (call.input_shape[1] + channels_out)
    transformed = of_images + channels_out * channels_in_of_group
    return prod(call.input_shape) + prod(call.output_shape) + _transformed((_TILE_SIDE, _TILE_SIDE)) * transformed


def _numbers_of_whole_images(call: Convolution) -> int:
    filled_up = tuple(
        power_of_two_from(side + width - 1) for side, width in zip(call.input_shape[2:], call.window, strict=True)
    )
    channels = call.input_shape[1] + call.output_shape[1]
    return prod(call.input_shape) + 2 * prod(call.output_shape) + 2 * _transformed(filled_up) * call.samples * channels


def _transformed(sides: tuple[int, ...]) -> int:
    """Return the real and imaginary parts of a real image's transform; half of its columns mirror the others."""
    *rows, columns = sides
    return prod(rows) * (columns // 2 + 1) * 2
