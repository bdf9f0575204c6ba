"""What batch norm copies and sums through on a card.

cuDNN reads the gradient in the layout of the image (``cudnn/BatchNorm.cpp``). ATen sums statistics in the forward pass,
and twice in the backward pass (``batch_norm_mean_var``, ``batch_norm_choose_impl`` and the kernels that they choose in
``aten/src/ATen/native/cuda/Normalization.cu`` and ``.cuh`` of torch 2.13); contiguous images need no memory there.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._prims_common import suggest_memory_format

from memplan.estimators.lowering.contiguous_copies import copies
from memplan.estimators.lowering.cuda_reductions import cuda_reduction
from memplan.estimators.lowering.normalisation import suits_cudnn
from memplan.estimators.lowering.temporary_bytes import NO_TEMPORARIES, TemporaryBytes
from memplan.estimators.temporaries.batch_statistics import channel_sums
from memplan.estimators.temporaries.ruled_blocks import ruled_blocks

if TYPE_CHECKING:
    from memplan.estimators.lowering.temporary_bytes import Rule
    from memplan.estimators.temporaries.ruled_blocks import RuledBlock

_NUMBER_BYTES = torch.float32.itemsize


def batch_norm_rules(capability: tuple[int, int], multiprocessors: int | None) -> dict[str, Rule]:
    """Return the rules by operator name without overload.

    Args:
        capability: compute capability of the card.
        multiprocessors: of the card; None where only its memory is known.
    """
    return {
        "aten.native_batch_norm": partial(_forward, capability=capability, multiprocessors=multiprocessors),
        "aten.native_batch_norm_backward": _backward,
    }


def _forward(
    args: tuple[Any, ...], _result: Any, *, capability: tuple[int, int], multiprocessors: int | None
) -> TemporaryBytes:
    """Partial means, variances and counts; of what lies otherwise, those of ``var_mean``."""
    image, weight, training = args[0], args[1], args[5]
    if not training or not image.numel() or _runs_on_cudnn(image, weight) or _is_contiguous(image):
        return NO_TEMPORARIES
    if _is_channels_last(image):
        return TemporaryBytes(after_results=_channel_sums(image, numbers=4))
    # ``make_reduction`` in ``ReduceOpsUtils.h`` reads float16 directly
    copied = (image.numel() * _NUMBER_BYTES,) if image.dtype is torch.bfloat16 else ()
    return TemporaryBytes(after_results=(*copied, *_variance_parts(image, capability, multiprocessors)))


def _variance_parts(
    image: torch.Tensor, capability: tuple[int, int], multiprocessors: int | None
) -> tuple[RuledBlock, ...]:
    over = (0, *range(2, image.dim()))
    if multiprocessors is None:
        return ()
    found = cuda_reduction("aten.var_mean", (image, over), None, capability, multiprocessors)
    return () if found is None else (found,)


def _backward(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """The gradient on cuDNN; else two sums (``batch_norm_backward_reduce_cuda_channels_last_template``)."""
    gradient, image, weight, training = args[0], args[1], args[2], args[7]
    if training and _runs_on_cudnn(image, weight):
        return TemporaryBytes(throughout=copies((gradient,), suggest_memory_format(image)))
    if not training or not image.numel() or not _is_channels_last(image):
        return NO_TEMPORARIES
    sums_bytes = image.shape[1] * _NUMBER_BYTES
    parts = _channel_sums(image, numbers=2) if _is_channels_last(gradient) else ()
    return TemporaryBytes(around_results=(sums_bytes, sums_bytes), before_results=parts)


def _runs_on_cudnn(image: torch.Tensor, weight: torch.Tensor | None) -> bool:
    return torch.backends.cudnn.enabled and suits_cudnn(image, weight, training=True)


def _is_contiguous(image: torch.Tensor) -> bool:
    return image.is_contiguous() and image.stride(1) != 1


def _is_channels_last(image: torch.Tensor) -> bool:
    if image.is_contiguous():
        return image.stride(1) == 1
    return image.is_contiguous(memory_format=torch.channels_last)


def _channel_sums(image: torch.Tensor, *, numbers: int) -> tuple[RuledBlock, ...]:
    channels = image.shape[1]
    return ruled_blocks(channel_sums, channels, image.numel() // channels, numbers)
