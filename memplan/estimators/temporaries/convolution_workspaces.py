"""A rule for the workspaces of convolutions, where cuDNN itself cannot be queried.

PyTorch allocates the workspace of the algorithm that cuDNN's heuristics propose first, runs it, and frees the block
(``aten/src/ATen/native/cudnn/Conv_v8.cpp``). The algorithm depends on shapes, dtype, layout, card and version. Where
cuDNN is installed, :mod:`memplan.estimators.cudnn` queries it. In benchmark mode PyTorch times the algorithms instead;
the one that is proposed first is the one that cuDNN itself takes for the fastest.

Tensor cores. Their kernels read channels-last; in another layout, cuDNN copies the operands into the workspace and the
result back (NVIDIA's performance guide, *Convolutional Layers*, on tensor layouts). Published profiles of Ampere to
Blackwell show for which: the forward pass and the weight's gradient run ``..._tf32_..._nhwc`` or ``..._nhwckrsc_...``
kernels between ``nchwToNhwcKernel`` and ``nhwcToNchwKernel``. In single precision, that follows from the channels
(:mod:`memplan.estimators.temporaries.single_precision_copies`). A weight of single pixels is the same in both layouts.

Windows of one pixel with stride one are matrix products without a copy where cuBLASLt can read the images: MobileNetV3
runs ``cutlass_80_tensorop_s1688gemm_..._nn`` there, nnU-Net ``ampere_fp16_s16816gemm_...``. The weight's gradient is
then made image by image and summed, or from copies, whichever needs less; on Hopper from copies where the weight is
narrow and large images are fewer than 64.

Images of up to four channels, such as photographs, are copied for the weight's gradient in half precision, and in
single precision for that of large windows, on A100 of patches too, but not on Blackwell; for the forward pass of
windows of seven pixels and more on data centres' cards. Their channels are filled up to eight, in single precision to
four. Groups of up to 16 channels in single precision are copied on Hopper and data centres' Blackwell only.

The weight's gradient of larger windows is summed in parts where it has few tiles of 128 x 128: as many as give every
multiprocessor a tile, twice as many on Blackwell, a third on Ampere's smaller cards, on Hopper for up to four tiles.

Channels-last in single precision: but for Hopper, what a kernel reads is copied all the same, supposedly to round it.
For the weight's gradient of depthwise convolutions with large windows, as in ConvNeXt, every channel becomes eight on
A100, Ada and Hopper.

What published profiles do not show is what cuDNN 9.20 answers. ``benchmarks/convolution_rule.py`` asks it, and
``benchmarks/README.md`` says how far the rule agrees.

Volta and Turing transform tiles in single precision (:mod:`memplan.estimators.temporaries.winograd`).

Not counted: workspaces of FFT and split kernels, and what channels-last kernels take (but see
:mod:`memplan.estimators.temporaries.engines_for_cards`).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from memplan.estimators.temporaries.card_generations import Generation
from memplan.estimators.temporaries.convolutions import Pass
from memplan.estimators.temporaries.engines_for_cards import depthwise_bytes
from memplan.estimators.temporaries.single_precision_copies import are_images_copied, is_written_in_place
from memplan.estimators.temporaries.winograd import runs_unfused_winograd, winograd_bytes
from memplan.units import ceil_div

if TYPE_CHECKING:
    from memplan.estimators.temporaries.convolutions import Convolution

# In single precision as TF32.
_TENSOR_CORES_FROM = {"float16": Generation.VOLTA, "bfloat16": Generation.A100, "float32": Generation.A100}
_FEW_CHANNELS, _FEW_IN_A_GROUP = 4, 16
_LARGE_WINDOW = 7
# The smallest window for which photographs in single precision are copied for the weight's gradient.
_COPIED_FOR_WINDOWS = {
    Generation.A100: 4,
    Generation.AMPERE: _LARGE_WINDOW,
    Generation.ADA: 14,
    Generation.HOPPER: _LARGE_WINDOW,
    Generation.BLACKWELL_OF_DATA_CENTRES: _LARGE_WINDOW,
}
_COPYING = (Generation.HOPPER, Generation.BLACKWELL_OF_DATA_CENTRES)  # where others read
_CHANNELS_IN_HALF, _CHANNELS_IN_SINGLE = 8, 4  # at once on a tensor core
_NEVER = 1 << 30
_IMAGE_DIMENSIONS = 2
_NUMBER_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
_SUM_BYTES = 4  # single precision
_TILE_OF_PRODUCT, _FEW_TILES = 128, 20
_SPLIT_UP_TO_TILES = {Generation.A100: 54, Generation.HOPPER: 4}
_MULTIPROCESSORS = 108  # of an A100
# What sums are split for; elsewhere one a multiprocessor.
_TILES_AT_ONCE = {Generation.AMPERE: 36, Generation.BLACKWELL_OF_DATA_CENTRES: 216, Generation.BLACKWELL: 216}
_MATRIX_ALIGNMENT_BYTES = 8
# From how many channels, and pixels of all images, the weight's gradient of a depthwise convolution fills them up.
_FILLED_UP_CHANNELS = 96
_FILLED_UP_PIXELS = {Generation.A100: 64 * 7 * 7, Generation.ADA: 64 * 28 * 28, Generation.HOPPER: 64 * 28 * 28}
_NARROW, _FEW_SAMPLES, _SMALL_IMAGE = 32, 64, 28 * 28  # channels, images, pixels
_TINY_IMAGE, _WIDE_WEIGHT = 10 * 10, 1 << 18  # pixels, numbers


def workspace_bytes(call: Convolution, capability: tuple[int, int]) -> int:
    """Return the workspace of a convolution on cuDNN, on a card of a compute capability."""
    generation = Generation.of(capability)
    of_depthwise = depthwise_bytes(call, generation)
    if of_depthwise is not None:
        return of_depthwise
    if _fills_up_every_channel(call, generation):
        return _CHANNELS_IN_HALF * prod(call.input_shape) * _NUMBER_BYTES[call.dtype]
    if runs_unfused_winograd(call, generation):
        return winograd_bytes(call)
    if call.is_matrix_product and generation < Generation.TURING:
        return 0
    copied = _copied_numbers(call, generation) if _uses_tensor_cores(call, generation) else ()
    needed = [sum(copied) * _NUMBER_BYTES[call.dtype] + _sums_bytes(call, generation)] if copied else []
    if _is_for_cublaslt(call) and not (copied and _is_small_on_hopper(call, generation)):
        needed.append(_matrix_product_bytes(call))
    return min(needed, default=0)


def _fills_up_every_channel(call: Convolution, generation: Generation) -> bool:
    """Whether each channel of a depthwise convolution becomes eight of a tensor core, for the weight's gradient."""
    is_gradient = call.is_depthwise and call.kernel is Pass.WEIGHT_GRADIENT
    if not is_gradient or not call.channels_last or call.dtype != "float32" or not call.with_tf32:
        return False
    pixels = call.samples * prod(call.input_shape[2:])
    is_large = call.input_shape[1] >= _FILLED_UP_CHANNELS and pixels >= _FILLED_UP_PIXELS.get(generation, _NEVER)
    return is_large and min(call.window) >= _LARGE_WINDOW


def _is_for_cublaslt(call: Convolution) -> bool:
    """Whether it is a matrix product that cuBLASLt computes: not where images lie at no multiple of eight bytes.

    In half precision it still does unless they are tiny and the weight is wide.
    """
    if not call.is_matrix_product or call.channels_last or (call.dtype == "float32" and call.with_tf32):
        return call.is_matrix_product
    pixels = prod(call.output_shape[2:])
    is_askew = pixels * _NUMBER_BYTES[call.dtype] % _MATRIX_ALIGNMENT_BYTES != 0
    is_wide_and_tiny = pixels <= _TINY_IMAGE and prod(call.weight_shape) >= _WIDE_WEIGHT
    return not is_askew or (call.dtype != "float32" and not is_wide_and_tiny)


def _is_small_on_hopper(call: Convolution, generation: Generation) -> bool:
    """Whether it is the gradient of a narrow weight of few, large images, which Hopper makes from copies."""
    is_of_few = min(call.weight_shape[:2]) <= _NARROW and call.samples < _FEW_SAMPLES
    is_single = call.dtype == "float32" and call.kernel is Pass.WEIGHT_GRADIENT
    return generation == Generation.HOPPER and is_single and is_of_few and prod(call.output_shape[2:]) > _SMALL_IMAGE


def _matrix_product_bytes(call: Convolution) -> int:
    """Return the workspace of a matrix product in cuBLASLt: gradients of the weight of single images, to be summed.

    In channels-last all pixels of all images are one matrix, and nothing is left to sum; nor is where an image is one
    pixel. What cuBLASLt itself may take is not counted.
    """
    is_split = not call.channels_last and prod(call.output_shape[2:]) > 1
    if call.kernel is not Pass.WEIGHT_GRADIENT or not is_split:
        return 0
    return call.samples * prod(call.weight_shape) * max(_NUMBER_BYTES[call.dtype], _SUM_BYTES)


def _sums_bytes(call: Convolution, generation: Generation) -> int:
    """Return what gradients of weights take beside their operands: one weight, or one in single precision a part."""
    if call.kernel is not Pass.WEIGHT_GRADIENT or not _differs_between_layouts(call, generation):
        return 0
    weight = prod(call.weight_shape)
    parts = _parts(call, generation)
    if _is_of_few_channels(call):
        weight = _filled_up(weight, call)
    return parts * weight * _SUM_BYTES if parts > 1 else weight * _NUMBER_BYTES[call.dtype]


def _parts(call: Convolution, generation: Generation) -> int:
    outputs, *summed = call.weight_shape
    tiles = ceil_div(outputs, _TILE_OF_PRODUCT) * ceil_div(prod(summed), _TILE_OF_PRODUCT)
    if not call.has_one_group or tiles > _SPLIT_UP_TO_TILES.get(generation, _FEW_TILES):
        return 1
    return _TILES_AT_ONCE.get(generation, _MULTIPROCESSORS) // tiles


def _uses_tensor_cores(call: Convolution, generation: Generation) -> bool:
    first = _TENSOR_CORES_FROM.get(call.dtype)
    return first is not None and generation >= first and (call.with_tf32 or call.dtype != "float32")


def _copied_numbers(call: Convolution, generation: Generation) -> tuple[int, ...]:
    """Return the numbers in each operand or result that is copied; none where all are read as they lie."""
    image, output = prod(call.input_shape), prod(call.output_shape)
    is_weight_copied = call.kernel is not Pass.WEIGHT_GRADIENT and _differs_between_layouts(call, generation)
    weight = prod(call.weight_shape) if is_weight_copied else 0
    is_one_pixel = prod(call.input_shape[2:]) == 1
    if is_one_pixel or not _is_copied(call, generation):
        return ()
    if _is_of_few_channels(call):
        image, weight = _filled_up(image, call), _filled_up(weight, call)
        return (image, weight) if call.channels_last else (image, weight, output)
    if not call.channels_last:
        is_flat = len(call.stride) == _IMAGE_DIMENSIONS
        is_single = is_flat and call.dtype == "float32" and not call.is_matrix_product and call.has_one_group
        if is_single and not are_images_copied(call, generation):
            return ()
        return (image, weight) if is_single and is_written_in_place(call, generation) else (image, weight, output)
    read = {
        Pass.FORWARD: (image, weight),
        Pass.INPUT_GRADIENT: (output, weight),
        Pass.WEIGHT_GRADIENT: (image, output),
    }
    return read[call.kernel]


def _is_copied(call: Convolution, generation: Generation) -> bool:
    is_single = call.dtype == "float32"
    if _is_of_few_channels(call):
        return _is_copied_photograph(call, generation)
    if call.channels_last:
        return is_single and call.has_one_group and prod(call.window) > 1 and generation != Generation.HOPPER
    return call.has_one_group or not is_single or generation in _COPYING or call.weight_shape[1] > _FEW_IN_A_GROUP


def _differs_between_layouts(call: Convolution, generation: Generation) -> bool:
    """Whether a weight lies otherwise in channels-last; in single precision those of pixels are copied all the same."""
    is_copied_all_the_same = call.dtype == "float32" and generation != Generation.HOPPER and not call.is_matrix_product
    return prod(call.window) > 1 or is_copied_all_the_same


def _is_copied_photograph(call: Convolution, generation: Generation) -> bool:
    has_large_window = call.window[0] >= _LARGE_WINDOW
    is_forward = call.kernel is Pass.FORWARD and has_large_window and generation in (Generation.A100, *_COPYING)
    if call.dtype != "float32":
        return call.kernel is Pass.WEIGHT_GRADIENT or is_forward
    if call.channels_last or call.kernel is Pass.INPUT_GRADIENT:
        return False
    return is_forward or (
        call.kernel is Pass.WEIGHT_GRADIENT and call.window[0] >= _COPIED_FOR_WINDOWS.get(generation, _NEVER)
    )


def _filled_up(numbers: int, call: Convolution) -> int:
    """Return the numbers of an image or a weight once its few channels are filled up."""
    is_read_as_it_is = call.dtype == "float32" and call.kernel is not Pass.WEIGHT_GRADIENT
    channels = _CHANNELS_IN_SINGLE if call.dtype == "float32" else _CHANNELS_IN_HALF
    return numbers if is_read_as_it_is else numbers // call.input_shape[1] * channels


def _is_of_few_channels(call: Convolution) -> bool:
    return call.has_one_group and call.input_shape[1] <= _FEW_CHANNELS
