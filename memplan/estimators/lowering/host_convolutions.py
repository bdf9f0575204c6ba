"""oneDNN's copies of what convolutions of the CPU read and make, in its own layouts.

Found by reading the CPU allocator's events of single convolutions (torch 2.13, AVX-512 and AVX2). In channels-first
layout, single precision is copied to and from a blocked layout, whose channels are padded to the vector width. Half
precision, transposed convolutions and gradients of strided ones are copied to channels-last and back, with one copy
more. Channels-last images are read directly. Windows without a vector kernel are unfolded for the weight's gradient,
and dilated ones that are strided or of a single channel for the image's, too.

oneDNN has no kernels for float16 where the processor has not (``use_mkldnn`` in ``Convolution.cpp``). ATen then unfolds
all images of a group, group by group, and joins the results (``slow_conv2d_forward`` in ``ConvolutionMM2d.cpp``); one
image at a time where windows are dilated.

Not counted: the unfolding of other wide dilated windows for image and result, scratch pads of a few hundred kilobytes,
those of bfloat16 products, and what transposed convolutions take in float16 without such kernels.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch._prims_common import suggest_memory_format

from memplan.estimators.lowering.temporary_bytes import TemporaryBytes
from memplan.estimators.temporaries.convolutions import of_each_dimension
from memplan.training.half_precision import HALF_TYPES
from memplan.units import round_up

if TYPE_CHECKING:
    from collections.abc import Sequence

_VECTOR_ELEMENTS = {"AVX512": 16, "AVX2": 8}
_GROUP_BLOCK = 4  # channels of a group that are read together; for the gradient of the weight, twice as many
_MANY_IMAGES = 16
_FEW_CHANNELS = 16  # inputs with fewer are read directly by the forward pass
_COLOURS = 3
_WIDEST_DEPTHWISE = 3  # pixels on a side; measured with 3, 5 and 7
_WIDEST_WINDOW = 14  # pixels on a side; the gradient of the weight of a wider one is a matrix product


def convolution(args: tuple[Any, ...], result: torch.Tensor) -> TemporaryBytes:
    """Return the temporaries of ``aten.convolution``: copies of image, weight and result."""
    image, weight, transposed, groups = args[0], args[1], args[6], args[8]
    stride = of_each_dimension(args[3], image.dim() - 2)
    if _is_unfolded_by_groups(weight, transposed):
        columns_bytes = _columns_of_group_bytes(result, weight, args[5])
        if groups == 1:
            return TemporaryBytes(after_results=(columns_bytes,))
        return TemporaryBytes(before_results=(image.nbytes // groups + columns_bytes,), around_results=(result.nbytes,))
    if _is_channels_last(image) or _is_channels_last(weight):
        return TemporaryBytes(after_results=(_reordered_weight_bytes(weight, groups),))
    if _runs_uncopied(image, weight, stride, groups):
        return TemporaryBytes(around_results=(_columns_bytes(result, weight),))
    if transposed and not is_half(result):  # a single channel lies the same in both layouts
        second_bytes = result.nbytes if max(stride) > 1 and groups == 1 and result.shape[1] > 1 else 0
        return TemporaryBytes(
            before_results=(image.nbytes + _padded_weight_bytes(weight, groups),),
            around_results=(result.nbytes,),
            between_results=(second_bytes,),
        )
    copied_image_bytes = _copied_input_bytes(image, groups)
    copied_weight_bytes = _padded_weight_bytes(weight, groups) if copied_image_bytes else weight.nbytes
    is_read_in_blocks = _are_groups_of(_GROUP_BLOCK, weight, groups)
    is_converted_back = is_half(result) and not (weight.dtype is torch.bfloat16 and _is_depthwise(weight, groups))
    return TemporaryBytes(
        before_results=(copied_image_bytes + copied_weight_bytes,) if is_read_in_blocks else (),
        around_results=(_padded_bytes(result, groups),),
        between_results=(result.nbytes,) if is_converted_back else (),
    )


def convolution_backward(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Return the temporaries of ``aten.convolution_backward``, which makes the image's gradient before the weight's."""
    gradient, image, weight, transposed, groups = args[0], args[1], args[2], args[7], args[9]
    stride, dilation = (of_each_dimension(each, image.dim() - 2) for each in (args[4], args[6]))
    wants_image, wants_weight = args[10][:2]
    if _is_unfolded_by_groups(weight, transposed):
        columns_bytes = _columns_of_group_bytes(gradient, weight, args[6])
        if groups == 1:
            return TemporaryBytes(after_results=(columns_bytes,))
        return TemporaryBytes(
            before_results=((gradient.nbytes + image.nbytes) // groups + columns_bytes,),
            around_results=(image.nbytes if wants_image else 0,),
        )
    if _is_channels_last(image) or _is_channels_last(weight):
        return TemporaryBytes(  # the weight in blocks, then its gradient in blocks and in channels-last
            between_results=(_reordered_weight_bytes(weight, groups),) if wants_image else (),
            after_results=(_made_weight_bytes(image, weight, groups) + weight.nbytes,) if wants_weight else (),
        )
    if _runs_uncopied(image, weight, stride, groups):
        return TemporaryBytes(after_results=(_columns_bytes(gradient, weight),))
    of_weight_bytes = _weight_gradient_bytes(args, stride, dilation) if wants_weight else 0
    if wants_image and not transposed and _is_always_unfolded(weight, stride, dilation, groups):
        columns_bytes = _of_threads(gradient, _image_columns_bytes(gradient, weight))
        return TemporaryBytes(
            before_results=(columns_bytes,), around_results=(image.nbytes,), after_results=(of_weight_bytes,)
        )
    # The gradient of a transposed convolution is read as other convolutions read their input.
    blocked_gradient_bytes = _copied_input_bytes(gradient, groups) if transposed else _padded_bytes(gradient, groups)
    spread_out = is_half(weight) or (max(stride) > 1 and not transposed and groups == 1)
    is_read_in_blocks = wants_image and _are_groups_of(_GROUP_BLOCK, weight, groups)
    made_image_bytes = image.nbytes if spread_out else _padded_bytes(image, groups)
    return TemporaryBytes(
        before_results=(blocked_gradient_bytes + _padded_weight_bytes(weight, groups),) if is_read_in_blocks else (),
        around_results=(made_image_bytes,) if wants_image else (),
        between_results=(image.nbytes,) if wants_image and spread_out else (),
        after_results=(of_weight_bytes,),
    )


def _weight_gradient_bytes(args: tuple[Any, ...], stride: Sequence[int], dilation: Sequence[int]) -> int:
    gradient, image, weight, transposed, groups = *args[:3], args[7], args[9]
    weight_bytes: int = weight.nbytes
    if weight.dtype is torch.float16 or (transposed and _is_wide_depthwise(image, weight, groups)):
        return 0
    if not transposed and _is_unfolded(image, weight, stride, dilation, groups):
        return _unfolded_bytes(gradient, weight)
    if not _are_groups_of(2 * _GROUP_BLOCK, weight, groups):
        return 0
    read, other = (gradient, image) if transposed else (image, gradient)
    # With few channels of what is read, AVX2's kernel runs, but for colours, which are read as they are.
    few = _COLOURS < read.shape[1] < _FEW_CHANNELS
    width = _VECTOR_ELEMENTS["AVX2"] if few else _vector_width()
    read_bytes = _padded_bytes(read, groups, width) if read.shape[1] > _COLOURS else 0
    # The weight's is made in oneDNN's layout, too, which lives until it is copied.
    return max(_padded_bytes(other, groups, width) + read_bytes, weight_bytes)


def _is_unfolded(
    image: torch.Tensor, weight: torch.Tensor, stride: Sequence[int], dilation: Sequence[int], groups: int
) -> bool:
    """Whether the gradient of a weight is a matrix product, because no vector kernel takes its window.

    Those that are dilated may not be higher than the image (``init_conf`` in ``jit_avx512_common_conv_kernel.cpp``),
    with AVX2 no others, either (measured with windows of 3, 5 and 7 pixels).
    """
    may_be_higher = _vector_width() != _VECTOR_ELEMENTS["AVX2"]
    spans = [(size - 1) * step + 1 for size, step in zip(weight.shape[2:], dilation, strict=True)]
    is_higher = len(spans) > 1 and spans[-2] > image.shape[-2] and not (may_be_higher and dilation[-2] == 1)
    is_deep = len(spans) == 3 and (dilation[0] > 1 or spans[0] > image.shape[2])
    is_wide = max(weight.shape[2:]) > _WIDEST_WINDOW or _is_wide_depthwise(image, weight, groups)
    return is_higher or is_deep or is_wide or _is_always_unfolded(weight, stride, dilation, groups)


def _is_always_unfolded(weight: torch.Tensor, stride: Sequence[int], dilation: Sequence[int], groups: int) -> bool:
    """Whether the gradient of the image is a matrix product, too: of dilated windows, strided or of one channel."""
    moves_on = any(step > 1 and spread > 1 for step, spread in zip(stride, dilation, strict=True))
    return moves_on or (_is_depthwise(weight, groups) and max(dilation) > 1)


def _unfolded_bytes(gradient: torch.Tensor, weight: torch.Tensor) -> int:
    return _of_threads(gradient, _image_columns_bytes(gradient, weight) + 4 * weight.nbytes)


def _image_columns_bytes(gradient: torch.Tensor, weight: torch.Tensor) -> int:
    """Return what one image, or slice of one, unfolds to."""
    return gradient.shape[2:][-2:].numel() * weight.shape[1:].numel() * weight.element_size()


def _of_threads(gradient: torch.Tensor, size_bytes: int) -> int:
    """Return so many bytes for each thread that has an image."""
    return min(torch.get_num_threads(), gradient.shape[0]) * size_bytes


def _runs_uncopied(image: torch.Tensor, weight: torch.Tensor, stride: Sequence[int], groups: int) -> bool:
    """Whether ATen's own matrix product is used: on a single thread, for few images, pointwise, in single precision.

    Of three dimensions only two are asked (``use_mkldnn`` in ``Convolution.cpp``).
    """
    is_small = torch.get_num_threads() == 1 and image.shape[0] < _MANY_IMAGES
    pointwise = all(size == 1 for size in weight.shape[2:][-2:]) and all(step == 1 for step in stride)
    return is_small and pointwise and groups == 1 and not is_half(weight)


def _is_unfolded_by_groups(weight: torch.Tensor, transposed: bool) -> bool:
    has_kernels = torch.ops.mkldnn._is_mkldnn_fp16_supported()  # noqa: SLF001 - public under no other name
    return weight.dtype is torch.float16 and not transposed and not has_kernels


def _columns_of_group_bytes(result: torch.Tensor, weight: torch.Tensor, dilation: Any) -> int:
    """Bytes of the unfolded images of one group, of one image where windows are dilated."""
    is_dilated = max(of_each_dimension(dilation, weight.dim() - 2)) > 1
    return _columns_bytes(result, weight) // (result.shape[0] if is_dilated else 1)


def _columns_bytes(gradient: torch.Tensor, weight: torch.Tensor) -> int:
    """Unfold all images, where windows are more than points (``slow_conv3d`` in ``ConvolutionMM3d.cpp``)."""
    window: int = weight.shape[2:].numel()
    return gradient.shape[0] * gradient.shape[2:].numel() * weight.nbytes // weight.shape[0] if window > 1 else 0


def _are_groups_of(block: int, weight: torch.Tensor, groups: int) -> bool:
    """Whether channels come in such blocks in every group, where there are groups of several; measured with AVX-512."""
    of_group = (weight.shape[0] // groups, weight.shape[1])
    is_grouped = groups > 1 and not _is_depthwise(weight, groups)
    return not is_grouped or is_half(weight) or all(channels % block == 0 for channels in of_group)


def _is_wide_depthwise(image: torch.Tensor, weight: torch.Tensor, groups: int) -> bool:
    """Whether windows of one channel are wider than 3 pixels or than the image: the weight's gradient has no kernel."""
    window = weight.shape[2:]
    is_wide = max(window) > _WIDEST_DEPTHWISE or any(map(operator.gt, window, image.shape[2:]))
    return _is_depthwise(weight, groups) and is_wide


def _is_depthwise(weight: torch.Tensor, groups: int) -> bool:
    return groups > 1 and weight.shape[1] == 1


def _is_channels_last(tensor: torch.Tensor) -> bool:
    return suggest_memory_format(tensor) is not torch.contiguous_format


def _copied_input_bytes(image: torch.Tensor, groups: int) -> int:
    return 0 if image.shape[1] < _FEW_CHANNELS else _padded_bytes(image, groups)


def _padded_bytes(tensor: torch.Tensor, groups: int, width: int | None = None) -> int:
    """Bytes with channels filled up to a multiple of some elements, by default those of a vector."""
    if 1 < groups < tensor.shape[1] or is_half(tensor):
        return tensor.nbytes
    channels, of_vector = max(tensor.shape[1], 1), width or _vector_width()
    return tensor.nbytes // channels * round_up(channels, of_vector)


def _padded_weight_bytes(weight: torch.Tensor, groups: int) -> int:
    """Bytes of a weight as :func:`_padded_bytes` computes them; the channels of groups are not filled up."""
    return weight.nbytes if groups > 1 else _padded_bytes(weight, groups)


def _reordered_weight_bytes(weight: torch.Tensor, groups: int) -> int:
    """Bytes of a weight for channels-last images: in blocks if a group makes more or fewer channels than it reads."""
    return weight.nbytes if weight.shape[0] == groups * weight.shape[1] else _blocked_weight_bytes(weight, groups)


def _made_weight_bytes(image: torch.Tensor, weight: torch.Tensor, groups: int) -> int:
    """Bytes of a weight's gradient for channels-last images, in blocks but of narrow windows of one channel."""
    is_depthwise = _is_depthwise(weight, groups) and weight.shape[0] == groups
    has_kernel = is_depthwise and not _is_wide_depthwise(image, weight, groups)
    return weight.nbytes if has_kernel else _blocked_weight_bytes(weight, groups)


def _blocked_weight_bytes(weight: torch.Tensor, groups: int) -> int:
    """Bytes of a weight whose channels are filled up to vectors in each group."""
    if groups == 1:
        return weight.nbytes
    channels, width = (weight.shape[0] // groups, weight.shape[1]), _vector_width()
    made, read = (round_up(each, width) for each in channels)
    return groups * made * read * weight.shape[2:].numel() * weight.element_size()


def _vector_width() -> int:
    return _VECTOR_ELEMENTS.get(torch.backends.cpu.get_cpu_capability(), 1)


def is_half(tensor: torch.Tensor) -> bool:
    """Whether elements take 16 bits."""
    return tensor.dtype in HALF_TYPES
