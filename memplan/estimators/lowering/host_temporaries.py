"""Temporaries of CPU kernels, found by reading the CPU allocator's events (torch 2.13) and the sources named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from memplan.estimators.fake_tensors.host_recurrence import padded_bytes, scratch_bytes
from memplan.estimators.lowering.composite_temporaries import composite_rules
from memplan.estimators.lowering.contiguous_copies import (
    COPIES_ON_ANY_DEVICE,
    contiguous_first,
    copies_by_position,
    laid_out_first,
)
from memplan.estimators.lowering.host_convolutions import convolution, convolution_backward, is_half
from memplan.estimators.lowering.host_resampling import resampling_rules
from memplan.estimators.lowering.temporary_bytes import FP32_BYTES, INT64_BYTES, NO_TEMPORARIES, TemporaryBytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan.estimators.lowering.temporary_bytes import Rule

_PROMOTING = ("add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "maximum", "minimum", "pow",
              "eq", "ne", "lt", "le", "gt", "ge")  # fmt: skip


def _normalisation_backward(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """A second tensor like the input, if that needs a gradient."""
    return TemporaryBytes(after_results=(args[1].nbytes,)) if args[9][0] else NO_TEMPORARIES


def _promotion(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Operands converted to the common dtype (``compute_types``, TensorIterator.cpp).

    CUDA kernels convert while reading.
    """
    first, second = args[:2]
    if not isinstance(second, torch.Tensor) or not isinstance(first, torch.Tensor) or first.dtype is second.dtype:
        return NO_TEMPORARIES
    common = torch.result_type(first, second)
    others = [each for each in (first, second) if each.dtype is not common]
    return TemporaryBytes(around_results=(sum(each.numel() * common.itemsize for each in others),))


def _recurrence(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Both weights in oneDNN's layout, and what it works in (``mkldnn_rnn_layer`` in ``mkldnn/RNN.cpp``)."""
    data, weights = args[0], args[1:3]
    copies_bytes = sum(each.nbytes for each in weights) if is_half(data) else sum(map(_by_input_bytes, weights))
    return TemporaryBytes(after_results=(copies_bytes + _recurrence_scratch_bytes(data, weights),))


def _recurrence_backward(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Both weights' gradients in oneDNN's layout, weights whose rows it pads, and the output's gradient in order.

    Where only the last state is used, the output's gradient is zeros that are made here.
    """
    data, weights, output, gradient = args[0], args[1:3], args[7], args[10]
    in_order_bytes = 0 if gradient is not None and gradient.is_contiguous() else output.nbytes
    widened_bytes = output.numel() * FP32_BYTES if is_half(data) else 0
    read_bytes = sum(each.nbytes if is_half(data) else _padded_rows_bytes(each) for each in weights)
    made_bytes = sum(map(_by_input_bytes, weights))
    copies_bytes = in_order_bytes + widened_bytes + read_bytes + made_bytes
    return TemporaryBytes(after_results=(copies_bytes + _recurrence_scratch_bytes(data, weights),))


def _recurrence_scratch_bytes(data: torch.Tensor, weights: tuple[torch.Tensor, ...]) -> int:
    steps, samples = data.shape[:2]
    return scratch_bytes(1 if is_half(data) else steps, samples, weights[1].shape[1])


def _by_input_bytes(weight: torch.Tensor) -> int:
    return weight.shape[1] * padded_bytes(weight.shape[0], FP32_BYTES)


def _padded_rows_bytes(weight: torch.Tensor) -> int:
    row_bytes = padded_bytes(weight.shape[1], FP32_BYTES)
    return 0 if row_bytes == weight.shape[1] * FP32_BYTES else weight.shape[0] * row_bytes


def _attention_backward(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """A copy of the output's gradient by position, then head (``flash_attention_backward_kernel_impl``)."""
    return TemporaryBytes(after_results=copies_by_position(args[0]))


def _ctc_loss_backward(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Backward variables, as many as there are forward variables (``LossCTC.cpp``)."""
    return TemporaryBytes(after_results=(args[6].nbytes,))


def _order_statistic(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Values and positions, which are partially sorted (``kthvalue_out_impl_cpu`` in ``Sorting.cpp``)."""
    return TemporaryBytes(after_results=(args[0].nbytes + args[0].numel() * INT64_BYTES,))


_RULES: dict[str, Rule] = {
    "aten.convolution": convolution,
    "aten.convolution_backward": convolution_backward,
    "aten.native_batch_norm_backward": _normalisation_backward,
    "aten._ctc_loss_backward": _ctc_loss_backward,
    "aten.mkldnn_rnn_layer": _recurrence,
    "aten.mkldnn_rnn_layer_backward": _recurrence_backward,
    **dict.fromkeys((f"aten.{name}" for name in _PROMOTING), _promotion),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "aten.kthvalue": _order_statistic,
    **resampling_rules(),
}
_COPIES: dict[str, Rule] = {
    **COPIES_ON_ANY_DEVICE,
    "aten.native_layer_norm_backward": contiguous_first(2),
    **dict.fromkeys(("aten._softmax", "aten._log_softmax"), contiguous_first(1)),  # these and the next: ``SoftMax.cpp``
    **dict.fromkeys(("aten._softmax_backward_data", "aten._log_softmax_backward_data"), contiguous_first(2)),
    "aten.convolution": lambda args, _result: laid_out_first(*args[:2]),
    "aten.convolution_backward": lambda args, _result: laid_out_first(*args[:3]),
}
# Tables of rules by operator name without overload.
HOST_RULES: tuple[Mapping[str, Rule], ...] = (composite_rules(on_cuda=False), _COPIES, _RULES)
