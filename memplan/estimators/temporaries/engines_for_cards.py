"""Workspaces of convolution engines that cuDNN names only where there is a card, worked out from the shapes.

Depthwise convolutions in half precision, with windows of three, five or seven pixels. Beside a library of the driver,
9.20 proposes engines first that it leaves out elsewhere.

Forward and gradient of the input: they take nothing, in all of 1,600 random calls in channels-last on 8.0 and 9.0,
where the bare answer is up to some GiB, and for the layers of usual nets on seven capabilities in float16 and the
images' own layout, where it is twice the images. In float16 and channels-last on 7.5 they take nothing with windows
of seven pixels in all of 253 random calls, and up to 57 KiB with others in 526.

Gradient of the weight, channels-last: eight sums of every image in single precision, channels in multiples of 32. Of
1,470 random calls on 7.5, 8.0, 8.6, 9.0 and 12.0 this agrees to 1 MiB with what cuDNN answers there in 1,391, the bare
answer in 466. For float16 with windows of three and five pixels other engines come first as often.

Gradient of the weight, float16 in the images' own layout, with steps of one pixel: nothing on Turing and Ampere's
smaller cards, elsewhere nothing for small images, and the bare answer for larger ones.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from memplan.estimators.temporaries.card_generations import Generation
from memplan.estimators.temporaries.convolutions import Pass
from memplan.units import round_up

if TYPE_CHECKING:
    from memplan.estimators.temporaries.convolutions import Convolution

_SUM_BYTES = 4  # single precision
_SUMS_OF_AN_IMAGE = 8
_CHANNEL_STEP = 32
_WINDOW_SIDES = (3, 5, 7)
# Sides of the windows for which the engine of sums is proposed first, and from which compute capability on.
_SUMMED_WINDOWS = {"bfloat16": (_WINDOW_SIDES, Generation.A100), "float16": ((7,), Generation.TURING)}
_TAKING_NOTHING = (Generation.TURING, Generation.SMALL_TURING, Generation.AMPERE)
_SMALL_IMAGES = {3: 56 * 56, 5: 14 * 14}  # pixels, by the side of the window


def depthwise_bytes(convolution: Convolution, generation: Generation) -> int | None:
    """Return the workspace of a depthwise convolution in half precision; None where cuDNN knows better."""
    if not convolution.is_depthwise or any(step > 1 for step in convolution.dilation):
        return None
    if not convolution.channels_last:
        return _bytes_in_own_layout(convolution, generation)
    sides, first_generation = _SUMMED_WINDOWS.get(convolution.dtype, ((), Generation.A100))
    if sides and convolution.kernel is not Pass.WEIGHT_GRADIENT:
        sides = _WINDOW_SIDES
    if generation < first_generation or not any(convolution.window == (side, side) for side in sides):
        return None
    if convolution.kernel is not Pass.WEIGHT_GRADIENT:
        return 0
    padded_channels = round_up(convolution.input_shape[1], _CHANNEL_STEP)
    return _SUMS_OF_AN_IMAGE * convolution.samples * padded_channels * prod(convolution.window) * _SUM_BYTES


def _bytes_in_own_layout(convolution: Convolution, generation: Generation) -> int | None:
    small = next((pixels for side, pixels in _SMALL_IMAGES.items() if convolution.window == (side, side)), None)
    if convolution.dtype != "float16" or small is None:
        return None
    if convolution.kernel is not Pass.WEIGHT_GRADIENT:
        return 0
    if any(step > 1 for step in convolution.stride):
        return None
    is_small = prod(convolution.input_shape[2:]) <= small
    return 0 if is_small or generation in _TAKING_NOTHING else None
