"""Copies that CUDA kernels make of operands that lie in another layout than they read.

Each kernel's own source in ``aten/src/ATen/native/cuda`` of torch 2.13 says so by ``contiguous``: ``SoftMax.cu``,
``AveragePool2d.cu``, ``AdaptiveMaxPooling2d.cu`` and the like, ``UpSample*.cu``, ``ReflectionPad.cu``, ``Loss.cu``,
``ScanUtils.cuh``, ``Sorting.cpp``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._prims_common import (
    compute_elementwise_output_strides,
    make_contiguous_strides_for,
    suggest_memory_format,
)

from memplan.estimators.lowering.contiguous_copies import COPIES_ON_ANY_DEVICE, contiguous_first, copies
from memplan.estimators.lowering.temporary_bytes import TemporaryBytes

if TYPE_CHECKING:
    from memplan.estimators.lowering.temporary_bytes import Rule


def copying_rules() -> dict[str, Rule]:
    """Return the rules by operator name without overload; convolutions and products have rules of their own."""
    return {
        **COPIES_ON_ANY_DEVICE,
        **dict.fromkeys(("aten.fractional_max_pool2d_backward", "aten._embedding_bag_backward"), contiguous_first(1)),
        # ``MaxUnpooling.cu``: what is spread out and where to, before the result exists
        **dict.fromkeys(("aten.max_unpool2d", "aten.max_unpool3d"), contiguous_first(2)),
        **dict.fromkeys((f"aten.{name}" for name in _READING_CONTIGUOUSLY), _contiguous),
        **dict.fromkeys((f"aten.{name}" for name in _LIKE_THE_IMAGE), _like_the_image),
        **dict.fromkeys((f"aten.{name}_backward" for name in _IN_OWN_LAYOUT), _in_own_layout),
        **dict.fromkeys((f"aten.{name}" for name in _RESAMPLED_CONTIGUOUSLY), _resampled),
        "aten._adaptive_avg_pool3d": lambda args, _result: TemporaryBytes(around_results=copies(args[:1])),
        "aten.adaptive_max_pool2d": _adaptive_max_pool,
        "aten.adaptive_max_pool2d_backward": _adaptive_max_pool_backward,
        **dict.fromkeys(("aten.native_layer_norm_backward", "aten._fused_rms_norm_backward"), _layer_norm_backward),
        "aten._softmax_backward_data": _softmax_backward,
        "aten._log_softmax_backward_data": lambda args, _result: TemporaryBytes(after_results=copies(args[:2])),
    }


_READING_CONTIGUOUSLY = (
    "_softmax", "_log_softmax", "avg_pool3d", "avg_pool3d_backward", "_adaptive_avg_pool3d_backward",
    "adaptive_max_pool3d", "adaptive_max_pool3d_backward", "reflection_pad1d_backward", "reflection_pad2d",
    "reflection_pad2d_backward", "reflection_pad3d", "nll_loss_backward", "col2im", "cumsum", "cumprod", "cummax",
    "cummin", "logcumsumexp", "kthvalue",
)  # fmt: skip
_LIKE_THE_IMAGE = ("avg_pool2d_backward", "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
_IN_OWN_LAYOUT = (
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "upsample_bicubic2d", "upsample_trilinear3d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
    "_adaptive_avg_pool2d",
)  # fmt: skip
_RESAMPLED_CONTIGUOUSLY = (
    "upsample_nearest3d", "_upsample_nearest_exact3d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
)  # fmt: skip


def _contiguous(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    return TemporaryBytes(after_results=copies(args[:1]))


def _like_the_image(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    return TemporaryBytes(after_results=copies(args[:1], suggest_memory_format(args[1])))


def _in_own_layout(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    return TemporaryBytes(after_results=copies(args[:1], suggest_memory_format(args[0])))


def _resampled(args: tuple[Any, ...], result: torch.Tensor) -> TemporaryBytes:
    """A contiguous result and image (``upsample_gen2d_aa_out_cuda_template`` in ``UpSampleBilinear2d.cu``)."""
    return TemporaryBytes(after_results=copies((result, args[0])))


def _adaptive_max_pool(args: tuple[Any, ...], result: Any) -> TemporaryBytes:
    """Contiguous results and images, where they are not (``adaptive_max_pool2d_out_cuda``)."""
    return TemporaryBytes(after_results=copies((*result, args[0])))


def _adaptive_max_pool_backward(args: tuple[Any, ...], result: torch.Tensor) -> TemporaryBytes:
    gradient, _, positions = args
    return TemporaryBytes(after_results=copies((gradient, positions, result)))


def _layer_norm_backward(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """What was normalised is copied before the gradients exist, the result's gradient after."""
    return TemporaryBytes(throughout=copies(args[1:2]), after_results=copies(args[:1]))


def _softmax_backward(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """The product of gradient and output (``softmax_backward_cuda_out``), and a copy unless it is contiguous.

    It lies as the gradient does, and where that is broadcast, as the output does.
    """
    gradient, output = args[:2]
    product_bytes = output.numel() * torch.result_type(gradient, output).itemsize
    strides = compute_elementwise_output_strides(gradient, output)
    lies_in_order = zip(output.shape, strides, make_contiguous_strides_for(output.shape), strict=True)
    copied = () if all(size == 1 or given == wanted for size, given, wanted in lies_in_order) else (product_bytes,)
    return TemporaryBytes(after_results=(product_bytes, *copied, *copies((output,))))
