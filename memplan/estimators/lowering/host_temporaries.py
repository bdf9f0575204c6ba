"""Temporaries of CPU kernels, above all oneDNN's copies of convolution operands in its own layouts.

Found by reading the CPU allocator's events of single convolutions (torch 2.13, AVX-512 and AVX2). In channels-first
layout, single precision is copied to and from a blocked layout, whose channels are padded to the vector width. Half
precision, transposed convolutions and gradients of strided ones are copied to channels-last and back, with one copy
more. Channels-last tensors are read directly. Windows without a vector kernel are unfolded for the weight's gradient.

Not counted: the unfolding of wide dilated windows in the other passes, scratch pads of a few hundred kilobytes, and
those of bfloat16 products.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._prims_common import suggest_memory_format

from memplan.estimators.fake_tensors.host_recurrence import padded_bytes, scratch_bytes
from memplan.estimators.lowering.composite_temporaries import composite_rules
from memplan.estimators.lowering.temporary_bytes import NO_TEMPORARIES, TemporaryBytes

if TYPE_CHECKING:
    from collections.abc import Callable

_VECTOR_ELEMENTS = {"AVX512": 16, "AVX2": 8}
_INT64_BYTES = 8
_FP32_BYTES = 4
_PROMOTING = ("add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "maximum", "minimum", "pow",
              "eq", "ne", "lt", "le", "gt", "ge")  # fmt: skip
_GROUP_BLOCK = 4  # channels of a group that are read together; for the gradient of the weight, twice as many
_MANY_IMAGES = 16
_FEW_CHANNELS = 16  # inputs with fewer are read directly by the forward pass
_COLOURS = 3
_SMALL_SIDES = 128  # pixels of height and width together
_WIDEST_WINDOW = 14  # pixels on a side; the gradient of the weight of a wider one is a matrix product


def host_temporary_bytes(operator: str, args: tuple[Any, ...], result: Any) -> TemporaryBytes:
    """Return the temporaries of a CPU kernel.

    Args:
        operator: name without overload, e.g. ``aten.convolution``.
        args: the operator's positional arguments.
        result: what it returned.
    """
    rule = _RULES.get(operator)
    return NO_TEMPORARIES if rule is None else rule(args, result)


def _convolution(args: tuple[Any, ...], result: torch.Tensor) -> TemporaryBytes:
    image, weight, stride, transposed, groups = args[0], args[1], args[3], args[6], args[8]
    if _is_channels_last(image) or _is_channels_last(weight):
        return TemporaryBytes(after_results=_bytes(weight))
    if _runs_uncopied(image, weight, stride, groups):
        return TemporaryBytes(around_results=_columns_bytes(result, weight))
    if transposed and not _is_half(result):  # nothing is padded; a single channel lies the same in both layouts
        second = _bytes(result) if max(stride) > 1 and groups == 1 and result.shape[1] > 1 else 0
        return TemporaryBytes(
            before_results=_bytes(image) + _bytes(weight), around_results=_bytes(result), between_results=second
        )
    copied_image = _copied_input(image, groups)
    copied_weight = _padded(weight, groups) if copied_image else _bytes(weight)
    is_read_in_blocks = _are_groups_of(_GROUP_BLOCK, weight, groups)
    is_converted_back = _is_half(result) and not (weight.dtype is torch.bfloat16 and _is_depthwise(weight, groups))
    return TemporaryBytes(
        before_results=copied_image + copied_weight if is_read_in_blocks else 0,
        around_results=_padded(result, groups),
        between_results=_bytes(result) if is_converted_back else 0,
    )


def _convolution_backward(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """From copies of gradient and weight the image's gradient, then from copies of gradient and image the weight's."""
    gradient, image, weight, stride, transposed, groups = args[0], args[1], args[2], args[4], args[7], args[9]
    wants_image, wants_weight = args[10][:2]
    if _is_channels_last(image) or _is_channels_last(weight):
        blocks = _vector_width() ** 2 if _is_wide_depthwise(weight, groups) else 1  # each weight in a block of its own
        return TemporaryBytes(after_results=blocks * _bytes(weight))
    if _runs_uncopied(image, weight, stride, groups):
        return TemporaryBytes(after_results=_columns_bytes(gradient, weight))
    # The gradient of a transposed convolution is read as other convolutions read their input.
    blocked_gradient = _copied_input(gradient, groups) if transposed else _padded(gradient, groups)
    spread_out = _is_half(weight) or (max(stride) > 1 and not transposed and groups == 1)
    is_read_in_blocks = wants_image and _are_groups_of(_GROUP_BLOCK, weight, groups)
    made_image = _bytes(image) if spread_out else _padded(image, groups)
    return TemporaryBytes(
        before_results=blocked_gradient + _padded(weight, groups) if is_read_in_blocks else 0,
        around_results=made_image if wants_image else 0,
        between_results=_bytes(image) if wants_image and spread_out else 0,
        after_results=_weight_gradient_bytes(args) if wants_weight else 0,
    )


def _weight_gradient_bytes(args: tuple[Any, ...]) -> int:
    gradient, image, weight, stride, dilation, transposed = *args[:3], args[4], args[6], args[7]
    groups: int = args[9]
    if weight.dtype is torch.float16 or (transposed and _is_wide_depthwise(weight, groups)):
        return 0
    if not transposed and _is_unfolded(image, weight, stride, dilation, groups):
        return _unfolded_bytes(gradient, weight)
    if not _are_groups_of(2 * _GROUP_BLOCK, weight, groups):
        return 0
    if transposed:
        copies = _padded(image, groups) + _copied_input(gradient, groups)
    else:  # with few channels of the image, AVX2's kernel runs, but for colours, which are read as they are
        few = _COLOURS < image.shape[1] < _FEW_CHANNELS
        width = _VECTOR_ELEMENTS["AVX2"] if few else _vector_width()
        copies = _padded(gradient, groups, width) + (_padded(image, groups, width) if image.shape[1] > _COLOURS else 0)
    # The weight's is made in oneDNN's layout, too, which lives until it is copied.
    return max(copies, _bytes(weight))


def _is_unfolded(
    image: torch.Tensor, weight: torch.Tensor, stride: list[int], dilation: list[int], groups: int
) -> bool:
    """Whether the gradient of a weight is a matrix product, which no vector kernel takes.

    Windows that are dilated may neither move by more than one nor be higher than the image (``init_conf`` in
    ``jit_avx512_common_conv_kernel.cpp``), nor be dilated in depth, nor be those of single channels.
    """
    is_dilated = [step > 1 for step in dilation]
    spans = [(size - 1) * step + 1 for size, step in zip(weight.shape[2:], dilation, strict=True)]
    moves_on = any(spread and step > 1 for spread, step in zip(is_dilated, stride, strict=True))
    is_higher = len(spans) > 1 and is_dilated[-2] and spans[-2] > image.shape[-2]
    is_deep = len(spans) == 3 and (is_dilated[0] or spans[0] > image.shape[2])
    of_one_channel = _is_depthwise(weight, groups) and (any(is_dilated) or _is_wide_depthwise(weight, groups))
    return moves_on or is_higher or is_deep or of_one_channel or max(weight.shape[2:]) > _WIDEST_WINDOW


def _unfolded_bytes(gradient: torch.Tensor, weight: torch.Tensor) -> int:
    """Columns of one image, or slice of one, and four times the weight, for each thread that has an image."""
    columns = gradient.shape[2:][-2:].numel() * weight.shape[1:].numel() * weight.element_size()
    return min(torch.get_num_threads(), gradient.shape[0]) * (columns + 4 * _bytes(weight))


def _normalisation_backward(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """A second tensor like the input, if that needs a gradient."""
    return TemporaryBytes(after_results=_bytes(args[1])) if args[9][0] else NO_TEMPORARIES


def _promotion(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Operands converted to the common dtype (``compute_types``, TensorIterator.cpp).

    CUDA kernels convert while reading.
    """
    first, second = args[:2]
    if not isinstance(second, torch.Tensor) or not isinstance(first, torch.Tensor) or first.dtype is second.dtype:
        return NO_TEMPORARIES
    common = torch.result_type(first, second)
    others = [each for each in (first, second) if each.dtype is not common]
    return TemporaryBytes(around_results=sum(each.numel() * common.itemsize for each in others))


def _recurrence(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Both weights in oneDNN's layout, and what it works in (``mkldnn_rnn_layer`` in ``mkldnn/RNN.cpp``)."""
    data, weights = args[0], args[1:3]
    copies = sum(map(_bytes, weights)) if _is_half(data) else sum(map(_by_input, weights))
    return TemporaryBytes(after_results=copies + _recurrence_scratch(data, weights))


def _recurrence_backward(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Both weights' gradients in oneDNN's layout, weights whose rows it pads, and the output's gradient in order.

    Where only the last state is used, the output's gradient is zeros that are made here.
    """
    data, weights, output, gradient = args[0], args[1:3], args[7], args[10]
    in_order = 0 if gradient is not None and gradient.is_contiguous() else _bytes(output)
    widened = output.numel() * _FP32_BYTES if _is_half(data) else 0
    read = sum(map(_bytes if _is_half(data) else _padded_rows, weights))
    made = sum(map(_by_input, weights))
    return TemporaryBytes(after_results=in_order + widened + read + made + _recurrence_scratch(data, weights))


def _recurrence_scratch(data: torch.Tensor, weights: tuple[torch.Tensor, ...]) -> int:
    steps, samples = data.shape[:2]
    return scratch_bytes(1 if _is_half(data) else steps, samples, weights[1].shape[1])


def _by_input(weight: torch.Tensor) -> int:
    return weight.shape[1] * padded_bytes(weight.shape[0], _FP32_BYTES)


def _padded_rows(weight: torch.Tensor) -> int:
    row_bytes = padded_bytes(weight.shape[1], _FP32_BYTES)
    return 0 if row_bytes == weight.shape[1] * _FP32_BYTES else weight.shape[0] * row_bytes


def _interpolation(args: tuple[Any, ...], result: torch.Tensor) -> TemporaryBytes:
    """Both images channels-last, where the result is small (``_use_vectorized_kernel_cond_2d``, UpSampleKernel.cpp)."""
    image: torch.Tensor = args[0]
    if sum(result.shape[2:]) > _SMALL_SIDES:
        return NO_TEMPORARIES
    return TemporaryBytes(
        after_results=sum(
            _bytes(each) for each in (image, result) if not each.is_contiguous(memory_format=torch.channels_last)
        )
    )


def _smooth_interpolation(args: tuple[Any, ...], result: torch.Tensor) -> TemporaryBytes:
    """The image at its new width, before its height changes (``separable_upsample_generic_Nd_kernel_impl``)."""
    image: torch.Tensor = args[0]
    if image.shape[2] == result.shape[2] or image.shape[3] == result.shape[3]:
        return NO_TEMPORARIES
    return TemporaryBytes(after_results=_bytes(result) // result.shape[2] * image.shape[2])


def _ctc_loss_backward(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Backward variables, as many as there are forward variables (``LossCTC.cpp``)."""
    return TemporaryBytes(after_results=_bytes(args[6]))


def _order_statistic(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Values and positions, which are partially sorted (``kthvalue_out_impl_cpu`` in ``Sorting.cpp``)."""
    return TemporaryBytes(after_results=_bytes(args[0]) + args[0].numel() * _INT64_BYTES)


def _runs_uncopied(image: torch.Tensor, weight: torch.Tensor, stride: list[int], groups: int) -> bool:
    """Whether ATen's own matrix product is used: on a single thread, for few images, pointwise, in single precision.

    Of three dimensions only two are asked (``use_mkldnn`` in ``Convolution.cpp``).
    """
    is_small = torch.get_num_threads() == 1 and image.shape[0] < _MANY_IMAGES
    pointwise = all(size == 1 for size in weight.shape[2:][-2:]) and all(step == 1 for step in stride)
    return is_small and pointwise and groups == 1 and not _is_half(weight)


def _columns_bytes(gradient: torch.Tensor, weight: torch.Tensor) -> int:
    """Unfold all images, where windows are more than points (``slow_conv3d`` in ``ConvolutionMM3d.cpp``)."""
    window = weight.shape[2:].numel()
    return gradient.shape[0] * gradient.shape[2:].numel() * _bytes(weight[0]) if window > 1 else 0


def _are_groups_of(block: int, weight: torch.Tensor, groups: int) -> bool:
    """Whether channels come in such blocks in every group, where there are groups of several; measured with AVX-512."""
    of_group = (weight.shape[0] // groups, weight.shape[1])
    is_grouped = groups > 1 and not _is_depthwise(weight, groups)
    return not is_grouped or _is_half(weight) or all(channels % block == 0 for channels in of_group)


def _is_wide_depthwise(weight: torch.Tensor, groups: int) -> bool:
    """Whether the weight's gradient reads gradient and input directly; measured at 7 x 7 and not at 3 x 3."""
    return _is_depthwise(weight, groups) and max(weight.shape[2:]) > 3


def _is_depthwise(weight: torch.Tensor, groups: int) -> bool:
    return groups > 1 and weight.shape[1] == 1


def _is_channels_last(tensor: torch.Tensor) -> bool:
    return suggest_memory_format(tensor) is not torch.contiguous_format


def _copied_input(image: torch.Tensor, groups: int) -> int:
    return 0 if image.shape[1] < _FEW_CHANNELS else _padded(image, groups)


def _padded(tensor: torch.Tensor, groups: int, width: int | None = None) -> int:
    """Bytes with channels filled up to a multiple of some elements, by default those of a vector."""
    if 1 < groups < tensor.shape[1] or _is_half(tensor):
        return _bytes(tensor)
    channels, of_vector = max(tensor.shape[1], 1), width or _vector_width()
    return _bytes(tensor) // channels * (-(-channels // of_vector) * of_vector)


def _vector_width() -> int:
    return _VECTOR_ELEMENTS.get(torch.backends.cpu.get_cpu_capability(), 1)


def _is_half(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.float16, torch.bfloat16)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


_RULES: dict[str, Callable[[tuple[Any, ...], Any], TemporaryBytes]] = {
    "aten.convolution": _convolution,
    "aten.convolution_backward": _convolution_backward,
    "aten.native_batch_norm_backward": _normalisation_backward,
    "aten._ctc_loss_backward": _ctc_loss_backward,
    "aten.mkldnn_rnn_layer": _recurrence,
    "aten.mkldnn_rnn_layer_backward": _recurrence_backward,
    **dict.fromkeys((f"aten.{name}" for name in _PROMOTING), _promotion),
    "aten.kthvalue": _order_statistic,
    **dict.fromkeys(
        (f"aten.{name}" for name in ("upsample_bilinear2d", "upsample_nearest2d", "_upsample_nearest_exact2d")),
        _interpolation,
    ),
    **dict.fromkeys(("aten._upsample_bilinear2d_aa", "aten._upsample_bicubic2d_aa"), _smooth_interpolation),
    **composite_rules(on_cuda=False),
}
