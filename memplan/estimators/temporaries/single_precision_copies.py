"""Which operands of a convolution kernels for single precision copy, where images keep their own layout.

Tensor cores read channels-last. Whether cuDNN copies operands for them, or runs a kernel that reads and writes images
as they lie, follows from the generation of the card, the pass and the channels. The channels below are those at which
the first proposals of cuDNN 9.20 change, of 25,000 to 40,000 passes of convolutions of 60 nets at batches of 2 to 256;
``benchmarks/convolution_rule.py`` says how far they hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from memplan.estimators.temporaries.card_generations import Generation
from memplan.estimators.temporaries.convolutions import Pass

if TYPE_CHECKING:
    from memplan.estimators.temporaries.convolutions import Convolution

_NEVER = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kernels:
    """Up to how many channels kernels of one generation do without copies; 0 where they always copy.

    Args:
        forward: output channels of a forward pass.
        forward_in_steps: input channels of a forward pass with steps of more than one pixel.
        written_from: output channels from which a forward pass that copies what it reads writes its result in place.
        input_gradient: input channels of a gradient of the input with steps of one pixel.
        input_gradient_of: output channels of such a gradient.
        large_input_gradient: numbers in the weight from which such a gradient of a large image is computed in place, by
            Winograd's algorithm.
        weight_gradient: input channels of a gradient of the weight of 17 to 32 output channels.
        weight_gradient_in_steps: input channels of a gradient of the weight with steps of more than one pixel.
        pixels_forward: channels of the narrower side, in a forward pass of windows of one pixel with larger steps.
        pixels_input_gradient: the same in the gradient of the input.
        pixels_weight_gradient: the same in the gradient of the weight.
    """

    forward: int = 0
    forward_in_steps: int = 0
    written_from: int = 0
    input_gradient: int = 0
    input_gradient_of: int = 0
    large_input_gradient: int = _NEVER
    weight_gradient: int = 0
    weight_gradient_in_steps: int = 0
    pixels_forward: int = 0
    pixels_input_gradient: int = 0
    pixels_weight_gradient: int = 0


_KERNELS = {
    Generation.A100: _Kernels(
        written_from=17,
        input_gradient=32,
        pixels_forward=64,
        pixels_weight_gradient=32,
    ),
    Generation.AMPERE: _Kernels(
        forward=32,
        forward_in_steps=32,
        input_gradient=32,
        weight_gradient=64,
        pixels_forward=128,
        pixels_input_gradient=256,
        pixels_weight_gradient=128,
    ),
    Generation.ADA: _Kernels(
        forward=32,
        forward_in_steps=64,
        input_gradient=32,
        input_gradient_of=64,
        large_input_gradient=1 << 18,
        weight_gradient=32,
        weight_gradient_in_steps=128,
        pixels_forward=256,
        pixels_input_gradient=512,
        pixels_weight_gradient=512,
    ),
    Generation.HOPPER: _Kernels(
        written_from=_NEVER,
        pixels_forward=64,
        pixels_input_gradient=128,
        pixels_weight_gradient=64,
    ),
    Generation.BLACKWELL_OF_DATA_CENTRES: _Kernels(
        written_from=65,
        weight_gradient=32,
        pixels_forward=64,
        pixels_input_gradient=32,
    ),
    Generation.BLACKWELL: _Kernels(
        written_from=65,
        input_gradient=16,
        pixels_forward=256,
        pixels_input_gradient=256,
        pixels_weight_gradient=256,
    ),
}
_MANY_SUMMANDS, _TO_FEW = 256, 4  # input channels, and how many times as many as output channels
_LARGE_IMAGE = 128 * 128  # pixels
_FEW_OUTPUTS = range(17, 33)


def are_images_copied(call: Convolution, generation: Generation) -> bool:
    """Whether images are copied for a convolution; else all is read and written as it lies."""
    kernels = _KERNELS[generation]
    outputs, inputs = call.weight_shape[:2]
    in_steps = any(step > 1 for step in call.stride)
    if prod(call.window) == 1:
        at_most = {
            Pass.FORWARD: kernels.pixels_forward,
            Pass.INPUT_GRADIENT: kernels.pixels_input_gradient,
            Pass.WEIGHT_GRADIENT: kernels.pixels_weight_gradient,
        }
        return min(outputs, inputs) > at_most[call.kernel]
    if call.kernel is Pass.FORWARD:
        return outputs > kernels.forward and not (in_steps and inputs <= kernels.forward_in_steps)
    if call.kernel is Pass.WEIGHT_GRADIENT:
        is_narrow = outputs in _FEW_OUTPUTS and inputs <= kernels.weight_gradient
        return not is_narrow and not (in_steps and inputs <= kernels.weight_gradient_in_steps)
    is_narrow = inputs <= kernels.input_gradient or outputs <= kernels.input_gradient_of
    is_large = prod(call.input_shape[2:]) >= _LARGE_IMAGE and prod(call.weight_shape) >= kernels.large_input_gradient
    return in_steps or not (is_narrow or is_large)


def is_written_in_place(call: Convolution, generation: Generation) -> bool:
    """Whether a pass that copies what it reads writes its result as it shall lie."""
    outputs, inputs = call.weight_shape[:2]
    sums_many = inputs > _MANY_SUMMANDS and inputs >= _TO_FEW * outputs and prod(call.window) > 1
    return call.kernel is Pass.FORWARD and outputs >= _KERNELS[generation].written_from and not sums_many
