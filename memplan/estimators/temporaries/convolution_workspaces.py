"""A rule for the workspaces of convolutions, where cuDNN itself cannot be queried, and for benchmark mode.

PyTorch allocates the workspace of the algorithm that cuDNN's heuristics propose first, runs it, and frees the block
(``aten/src/ATen/native/cudnn/Conv_v8.cpp``). The algorithm depends on shapes, dtype, layout, card and version. Where
cuDNN is installed, :mod:`memplan.estimators.cudnn` queries it.

Tensor cores. Their kernels read channels-last; in another layout, cuDNN copies the operands into the workspace and the
result back (NVIDIA's performance guide, *Convolutional Layers*, on tensor layouts). Published profiles of Ampere to
Blackwell show for which: the forward pass and the weight's gradient run ``..._tf32_..._nhwc`` or ``..._nhwckrsc_...``
kernels between ``nchwToNhwcKernel`` and ``nhwcToNchwKernel`` for input, weight and output. A weight of single pixels is
the same in both layouts.

Windows of one pixel with stride one are matrix products without a copy where cuBLASLt can read the images: MobileNetV3
runs ``cutlass_80_tensorop_s1688gemm_..._nn`` there, nnU-Net ``ampere_fp16_s16816gemm_...``. The weight's gradient is
then made image by image and summed, or from copies, whichever needs less.

Images of up to four channels, such as photographs, are copied for the weight's gradient in half precision, and for that
of windows of seven pixels or more until Ada and on data centres' Blackwell; in half precision the channels are filled
up to eight. For the forward pass of such windows they are copied on Hopper and data centres' Blackwell, and on A100 in
half precision. In single precision, groups of up to 16 channels are copied on Hopper and data centres' Blackwell only.

The weight's gradient of larger windows is summed in parts where it has few tiles of 128 x 128: in 64 to 100 of 100 up
to nine tiles, and mostly not from 40 on. Below 20, one part is counted, mostly there are more; for photographs, as many
as give each multiprocessor a tile.

Channels-last in single precision: but for Hopper, what a kernel reads is copied all the same, supposedly to round it.

What published profiles do not show is what cuDNN 9.8 and 9.20 answer. Of 10,000 to 16,000 passes of convolutions in
60 nets of timm and torchvision, in three dtypes and both layouts, this is within 1 MiB or 2 % of 9.20's answer for 83
to 89 of 100 on 7.5, 8.0, 8.6, 8.9, 9.0, 10.0 and 12.0.

Winograd on Volta, which has no tensor cores for single precision. Published profiles (ResNet-50 and Inception-ResNet on
V100, forward pass and gradient of the input) show ``cudnn::winograd_nonfused`` kernels for 3 x 3 windows with stride
one, from 80 channels on; up to 64, the fused ``volta_scudnn_winograd_128x128`` needs next to nothing. Unfused, input,
weight and output are transformed into the workspace, 36 elements per 4 x 4 tile of the output (Lavin and Gray, *Fast
Algorithms for Convolutional Neural Networks*). This is to the byte what cuDNN 7 returns for the 18 such shapes, in both
directions, that github.com/Slimakanzer/cudnn-benchmark lists. For Turing, cuDNN 9 proposes kernels that need next to
nothing.

Not counted: workspaces of FFT and split kernels, and what channels-last kernels take (but see
:mod:`memplan.estimators.temporaries.engines_for_cards`).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from memplan.estimators.temporaries.convolutions import Pass
from memplan.estimators.temporaries.engines_for_cards import depthwise_bytes

if TYPE_CHECKING:
    from memplan.estimators.temporaries.convolutions import Convolution

_VOLTA, _TURING = (7, 0), (7, 5)
_TENSOR_CORES_FROM = {"float16": _VOLTA, "bfloat16": (8, 0), "float32": (8, 0)}  # the last as TF32
_FEW_CHANNELS, _FEW_IN_A_GROUP = 4, 16
_LARGE_WINDOW, _READS_LARGE_WINDOWS_FROM = 7, (12, 0)
_A100, _HOPPER, _BLACKWELL_OF_DATA_CENTRES = (8, 0), (9, 0), (10, 0)
_COPYING = (_HOPPER, _BLACKWELL_OF_DATA_CENTRES)  # where others read
_CHANNELS_IN_HALF = 8  # at once on a tensor core
_NUMBER_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
_SUM_BYTES = 4  # single precision
_TILE_OF_PRODUCT, _FEW_TILES = 128, 20
_MULTIPROCESSORS = 108  # of an A100
_MATRIX_ALIGNMENT_BYTES = 8
_MAX_FUSED_CHANNELS = 64
_TILE_SIDE = 4  # output pixels
_TRANSFORMED_ELEMENTS = 36  # of one tile: 6 x 6 for windows of 3 x 3


def workspace_bytes(call: Convolution, capability: tuple[int, int]) -> int:
    """Return the workspace of a convolution on cuDNN, on a card of a compute capability."""
    of_depthwise = depthwise_bytes(call, capability)
    if of_depthwise is not None:
        return of_depthwise
    if _VOLTA <= capability < _TURING and _uses_unfused_winograd(call):
        return _winograd_bytes(call)
    if call.is_matrix_product and capability < _TURING:
        return 0
    copied = _copied_numbers(call, capability) if _uses_tensor_cores(call, capability) else ()
    needed = [sum(copied) * _NUMBER_BYTES[call.dtype] + _sums_in_parts_bytes(call)] if copied else []
    if _is_for_cublaslt(call):
        needed.append(_matrix_product_bytes(call))
    return min(needed, default=0)


def _is_for_cublaslt(call: Convolution) -> bool:
    """Whether it is a matrix product, except in half precision of matrices that lie at no multiple of eight bytes."""
    if call.dtype == "float32" and call.with_tf32:
        return call.is_matrix_product
    image_bytes = prod(call.output_shape[2:]) * _NUMBER_BYTES[call.dtype]
    return call.is_matrix_product and (call.channels_last or image_bytes % _MATRIX_ALIGNMENT_BYTES == 0)


def _matrix_product_bytes(call: Convolution) -> int:
    """Return the workspace of a matrix product in cuBLASLt: gradients of the weight of single images, to be summed.

    In channels-last all pixels of all images are one matrix, and nothing is left to sum; nor is where an image is one
    pixel. What cuBLASLt itself may take is not counted.
    """
    is_split = not call.channels_last and prod(call.output_shape[2:]) > 1
    if call.kernel is not Pass.WEIGHT_GRADIENT or not is_split:
        return 0
    return call.samples * prod(call.weight_shape) * max(_NUMBER_BYTES[call.dtype], _SUM_BYTES)


def _sums_in_parts_bytes(call: Convolution) -> int:
    """Return the least that gradients take whose sums are split: those of weights of few tiles."""
    if call.kernel is not Pass.WEIGHT_GRADIENT or prod(call.weight_shape[2:]) == 1:
        return 0
    outputs, *summed = call.weight_shape
    tiles = -(-outputs // _TILE_OF_PRODUCT) * -(-prod(summed) // _TILE_OF_PRODUCT)
    if _is_of_few_channels(call):
        return max(_MULTIPROCESSORS // tiles, 1) * _filled_up(prod(call.weight_shape), call) * _SUM_BYTES
    return prod(call.weight_shape) * _SUM_BYTES if tiles < _FEW_TILES else 0


def _uses_tensor_cores(call: Convolution, capability: tuple[int, int]) -> bool:
    first = _TENSOR_CORES_FROM.get(call.dtype)
    return first is not None and capability >= first and (call.with_tf32 or call.dtype != "float32")


def _copied_numbers(call: Convolution, capability: tuple[int, int]) -> tuple[int, ...]:
    """Return the numbers in each operand or result that is copied; none where all are read as they lie."""
    image, output = prod(call.input_shape), prod(call.output_shape)
    weight = prod(call.weight_shape) if prod(call.weight_shape[2:]) > 1 else 0
    is_one_pixel = prod(call.input_shape[2:]) == 1
    if is_one_pixel or not _is_copied(call, capability):
        return ()
    if _is_of_few_channels(call):
        image, weight = _filled_up(image, call), _filled_up(weight, call)
        return (image, weight) if call.channels_last else (image, weight, output)
    if not call.channels_last:
        return image, weight, output
    read = {
        Pass.FORWARD: (image, weight),
        Pass.INPUT_GRADIENT: (output, weight),
        Pass.WEIGHT_GRADIENT: (image, output),
    }
    return read[call.kernel]


def _is_copied(call: Convolution, capability: tuple[int, int]) -> bool:
    is_single = call.dtype == "float32"
    has_one_group = call.weight_shape[1] == call.input_shape[1]
    if _is_of_few_channels(call):
        return _is_copied_photograph(call, capability)
    if call.channels_last:
        return is_single and has_one_group and prod(call.weight_shape[2:]) > 1 and capability != _HOPPER
    return has_one_group or not is_single or capability in _COPYING or call.weight_shape[1] > _FEW_IN_A_GROUP


def _is_copied_photograph(call: Convolution, capability: tuple[int, int]) -> bool:
    has_large_windows = call.weight_shape[2] >= _LARGE_WINDOW
    if call.dtype != "float32":
        is_forward = call.kernel is Pass.FORWARD and has_large_windows and capability in (_A100, *_COPYING)
        return call.kernel is Pass.WEIGHT_GRADIENT or is_forward
    if call.channels_last or not has_large_windows:
        return False
    return {
        Pass.FORWARD: capability in _COPYING,
        Pass.INPUT_GRADIENT: False,
        Pass.WEIGHT_GRADIENT: capability < _READS_LARGE_WINDOWS_FROM,
    }[call.kernel]


def _filled_up(numbers: int, call: Convolution) -> int:
    """Return the numbers of an image or a weight once its few channels are filled up."""
    return numbers if call.dtype == "float32" else numbers // call.input_shape[1] * _CHANNELS_IN_HALF


def _is_of_few_channels(call: Convolution) -> bool:
    return call.weight_shape[1] == call.input_shape[1] <= _FEW_CHANNELS


def _uses_unfused_winograd(call: Convolution) -> bool:
    return (
        call.kernel is not Pass.WEIGHT_GRADIENT
        and call.dtype == "float32"
        and call.weight_shape[1] == call.input_shape[1]
        and not call.channels_last
        and call.weight_shape[2:] == (3, 3)
        and all(step == 1 for step in (*call.stride, *call.dilation))
        and min(call.weight_shape[:2]) > _MAX_FUSED_CHANNELS
    )


def _winograd_bytes(call: Convolution) -> int:
    """Return the workspace of Winograd's algorithm: the transforms of weight, input and output."""
    made = call.output_shape if call.kernel is Pass.FORWARD else call.input_shape
    rows, columns = (-(-side // _TILE_SIDE) for side in made[2:])
    tiles = made[0] * rows * columns
    channels_out, channels_in = call.weight_shape[:2]
    numbers = channels_out * channels_in + tiles * (channels_out + channels_in)
    return _TRANSFORMED_ELEMENTS * numbers * _NUMBER_BYTES[call.dtype]
