"""Workspaces of convolutions in single precision that transform tiles of images.

Cards without tensor cores for it, Volta and Turing, run Winograd's algorithm. Published profiles (ResNet-50 and
Inception-ResNet on V100, forward pass and gradient of the input) show ``cudnn::winograd_nonfused`` kernels for 3 x 3
windows with stride one, from 80 channels on; up to 64, the fused ``volta_scudnn_winograd_128x128`` needs next to
nothing. Unfused, input, weight and output are transformed into the workspace, 36 elements per 4 x 4 tile of the
output (Lavin and Gray, *Fast Algorithms for Convolutional Neural Networks*). This is to the byte what cuDNN 7 returns
for the 18 such shapes, in both directions, that github.com/Slimakanzer/cudnn-benchmark lists. On Turing cuDNN 9.20
proposes the same for batches of more than 16, and for the weight's gradient of more than 16 channels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.estimators.temporaries.card_generations import Generation
from memplan.estimators.temporaries.convolutions import Pass
from memplan.units import ceil_div

if TYPE_CHECKING:
    from memplan.estimators.temporaries.convolutions import Convolution

_MAX_FUSED_CHANNELS, _MAX_FUSED_SAMPLES, _MAX_CHANNELS_OF_GRADIENT = 64, 16, 16
_TILE_SIDE = 4  # output pixels
_TRANSFORMED_ELEMENTS = 36  # of one tile: 6 x 6 for windows of 3 x 3
_NUMBER_BYTES = 4  # single precision


def runs_unfused_winograd(call: Convolution, generation: Generation) -> bool:
    """Whether a convolution runs as Winograd's algorithm in several kernels, with transforms between them."""
    if generation not in {Generation.VOLTA, Generation.TURING}:
        return False
    is_plain = call.dtype == "float32" and call.has_one_group and not call.channels_last
    if not is_plain or call.window != (3, 3) or any(step != 1 for step in (*call.stride, *call.dilation)):
        return False
    channels = min(call.weight_shape[:2])
    if call.kernel is Pass.WEIGHT_GRADIENT:
        return generation == Generation.TURING and channels > _MAX_CHANNELS_OF_GRADIENT
    return channels > _MAX_FUSED_CHANNELS and (generation == Generation.VOLTA or call.samples > _MAX_FUSED_SAMPLES)


def winograd_bytes(call: Convolution) -> int:
    """Return the workspace of Winograd's algorithm: the transforms of weight, input and output."""
    made = call.output_shape if call.kernel is Pass.FORWARD else call.input_shape
    rows, columns = (ceil_div(side, _TILE_SIDE) for side in made[2:])
    tiles = made[0] * rows * columns
    channels_out, channels_in = call.weight_shape[:2]
    numbers = channels_out * channels_in + tiles * (channels_out + channels_in)
    return _TRANSFORMED_ELEMENTS * numbers * _NUMBER_BYTES
