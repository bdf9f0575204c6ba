"""Normalisation on CUDA: on a contiguous copy of the input, which is saved for the backward pass.

cuDNN's batch norm accepts channels-last as well (``_batch_norm_impl_index`` and ``_select_batch_norm_backend`` in
``aten/src/ATen/native/Normalization.cpp``), ATen's group norm does not (``group_norm.cpp``). cuDNN's reserve space,
which is empty except in its persistent mode, is not counted.
"""

from __future__ import annotations

import torch
from torch._prims_common import suggest_memory_format

_LARGEST_TRAINED, _LARGEST_EVALUATED = 880_801, 65_535  # samples


def batch_norm(  # noqa: PLR0917 - the operator's own signature
    image: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> torch.Tensor:
    """Normalise a copy in cuDNN's layout, or the input itself if ATen's kernel runs."""
    if cudnn_enabled and _suits_cudnn(image, weight, training=training):
        image = image.contiguous(memory_format=suggest_memory_format(image))
    normalised: torch.Tensor = torch.ops.aten.native_batch_norm(
        image, weight, bias, running_mean, running_var, training, momentum, eps
    )[0]
    return normalised


def group_norm(
    image: torch.Tensor,
    groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    _cudnn_enabled: bool = True,
) -> torch.Tensor:
    """Normalise a contiguous copy; the CPU kernel would keep channels-last."""
    image = image.contiguous()
    samples, channels = image.shape[:2]
    normalised: torch.Tensor = torch.ops.aten.native_group_norm(
        image, weight, bias, samples, channels, image.shape[2:].numel(), groups, eps
    )[0]
    return normalised


def _suits_cudnn(image: torch.Tensor, weight: torch.Tensor | None, *, training: bool) -> bool:
    if weight is None or image.dim() < 3 or torch.bfloat16 in (image.dtype, weight.dtype):
        return False
    fits = image.shape[0] <= (_LARGEST_TRAINED if training else _LARGEST_EVALUATED)
    return fits and (image.dtype is not torch.float16 or weight.dtype is torch.float32)
