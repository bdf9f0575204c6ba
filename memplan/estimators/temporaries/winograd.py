"""Workspaces of convolutions in single precision that transform tiles of images.

Cards without tensor cores for it, Volta and Turing, run Winograd's algorithm. Published profiles (ResNet-50 and
Inception-ResNet on V100, forward pass and gradient of the input) show ``cudnn::winograd_nonfused`` kernels for 3 x 3
windows with stride one, from 80 channels on; up to 64, the fused ``volta_scudnn_winograd_128x128`` needs next to
nothing. Unfused, input, weight and output are transformed into the workspace, 36 elements per 4 x 4 tile of the
output (Lavin and Gray, *Fast Algorithms for Convolutional Neural Networks*). This is to the byte what cuDNN 7 returns
for the 18 such shapes, in both directions, that github.com/Slimakanzer/cudnn-benchmark lists, and what 9.20 proposes
on Turing.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from memplan.estimators.temporaries.convolutions import Pass
from memplan.units import ceil_div

if TYPE_CHECKING:
    from memplan.estimators.temporaries.convolutions import Convolution

_MAX_FUSED_CHANNELS = 64
_TILE_SIDE = 4  # output pixels
_TRANSFORMED_ELEMENTS = 36  # of one tile: 6 x 6 for windows of 3 x 3
_NUMBER_BYTES = 4  # single precision


def runs_unfused_on_volta(call: Convolution) -> bool:
    """Whether Volta runs a convolution as Winograd's algorithm in several kernels, with transforms between them."""
    is_plain = call.dtype == "float32" and call.has_one_group and not call.channels_last
    if not is_plain or call.window != (3, 3) or any(step != 1 for step in (*call.stride, *call.dilation)):
        return False
    return call.kernel is not Pass.WEIGHT_GRADIENT and min(call.weight_shape[:2]) > _MAX_FUSED_CHANNELS


def winograd_bytes(call: Convolution) -> int:
    """Return the workspace of Winograd's algorithm: the transforms of weight, input and output."""
    made = call.output_shape if call.kernel is Pass.FORWARD else call.input_shape
    tiles = made[0] * prod(ceil_div(side, _TILE_SIDE) for side in made[2:])
    channels_out, channels_in_of_group = call.weight_shape[:2]
    numbers = channels_out * channels_in_of_group + tiles * (channels_out + call.input_shape[1])
    return _TRANSFORMED_ELEMENTS * numbers * _NUMBER_BYTES
