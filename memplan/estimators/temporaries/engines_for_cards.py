"""Workspaces of convolution engines that cuDNN names only where there is a card, worked out from the shapes.

Depthwise gradients of the weight, channels-last, in half precision. Beside a library of the driver, 9.20 proposes an
engine first that it leaves out elsewhere. Its workspace is eight sums of every image in single precision, channels in
multiples of 32. Of 1,470 random calls on 7.5, 8.0, 8.6, 9.0 and 12.0 this agrees to 1 MiB with what cuDNN answers there
in 1,391, the bare answer in 466. For float16 with windows of three and five pixels other engines come first as often.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from memplan.estimators.temporaries.convolutions import Pass
from memplan.units import round_up

if TYPE_CHECKING:
    from memplan.estimators.temporaries.convolutions import Convolution

_SUM_BYTES = 4  # single precision
_SUMS_OF_AN_IMAGE = 8
_CHANNEL_STEP = 32
# Sides of the windows for which the engine of sums is proposed first, and from which compute capability on.
_SUMMED_WINDOWS = {"bfloat16": ((3, 5, 7), (8, 0)), "float16": ((7,), (7, 5))}


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
