"""A rule for the workspaces of convolutions on older cards, and of those that may not be rounded.

Volta in single precision transforms tiles (:mod:`memplan.estimators.temporaries.winograd`). In half precision it has
tensor cores, whose kernels read channels-last; in another layout, cuDNN copies the operands into the workspace and the
result back (NVIDIA's performance guide, *Convolutional Layers*, on tensor layouts). Published profiles show the
kernels: ``nchwToNhwcKernel`` and ``nhwcToNchwKernel`` around ``..._nhwc_...``. A weight of single pixels is the same in
both layouts. Images of up to four channels, such as photographs, are copied for the weight's gradient alone, their
channels filled up to eight. The weight's gradient of larger windows is summed in parts where it has few tiles of
128 x 128.

Double precision, and single precision without TF32: windows of one pixel with stride one are matrix products in
cuBLASLt, which reads images in single precision at multiples of eight bytes. The weight's gradient is then made image
by image and summed. In channels-last all pixels of all images are one matrix, and nothing is left to sum; nor is where
an image is one pixel. Volta and older cards take nothing for them.

Not counted: workspaces of FFT and split kernels, what channels-last kernels take, and what cuBLASLt itself may take.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from memplan.estimators.temporaries.card_generations import Generation
from memplan.estimators.temporaries.convolutions import Pass
from memplan.estimators.temporaries.winograd import runs_unfused_on_volta
from memplan.estimators.temporaries.workspace_forms import Transform, WorkspaceForm, product_tiles

if TYPE_CHECKING:
    from memplan.estimators.temporaries.convolutions import Convolution

_NOTHING = WorkspaceForm()
_FEW_CHANNELS, _CHANNELS_OF_A_TENSOR_CORE = 4, 8
_FEW_TILES, _TILES_AT_ONCE = 20, 108
_ALIGNED_NUMBERS = 2  # in single precision


def ruled_form(call: Convolution, generation: Generation) -> WorkspaceForm:
    """Return the form of a convolution's workspace by the rule."""
    if generation == Generation.VOLTA and runs_unfused_on_volta(call):
        return WorkspaceForm(transform=Transform.WINOGRAD)
    if call.is_matrix_product:
        return _form_of_product(call) if generation >= Generation.TURING else _NOTHING
    uses_tensor_cores = call.dtype == "float16" and generation == Generation.VOLTA
    return _form_of_copies(call) if uses_tensor_cores and prod(call.input_shape[2:]) > 1 else _NOTHING


def _form_of_product(call: Convolution) -> WorkspaceForm:
    pixels = prod(call.output_shape[2:])
    is_aligned = call.dtype != "float32" or pixels % _ALIGNED_NUMBERS == 0
    is_summed = call.kernel is Pass.WEIGHT_GRADIENT and not call.channels_last and pixels > 1
    return WorkspaceForm(sums_per_image=1) if is_summed and is_aligned else _NOTHING


def _form_of_copies(call: Convolution) -> WorkspaceForm:
    is_of_few_channels = call.has_one_group and call.input_shape[1] <= _FEW_CHANNELS
    has_large_window = prod(call.window) > 1
    if call.kernel is not Pass.WEIGHT_GRADIENT:
        is_read_as_it_lies = call.channels_last or is_of_few_channels
        return _NOTHING if is_read_as_it_lies else WorkspaceForm(image=True, weight=has_large_window, output=True)
    if call.channels_last and not is_of_few_channels:
        return _NOTHING
    parts = _parts(call) if has_large_window else 0
    return WorkspaceForm(
        image=True,
        weight=parts == 1,
        output=not call.channels_last,
        channel_step=_CHANNELS_OF_A_TENSOR_CORE if is_of_few_channels else 1,
        sums=parts if parts > 1 else 0,
    )


def _parts(call: Convolution) -> int:
    """Return in how many parts a gradient of the weight is summed: as many as fill a card with tiles."""
    outputs, *summed = call.weight_shape
    tiles = product_tiles(outputs, prod(summed))
    return _TILES_AT_ONCE // tiles if call.has_one_group and tiles <= _FEW_TILES else 1
