"""Normalisation on CUDA: on a contiguous copy of the input, which is saved for the backward pass, or by one kernel.

cuDNN's batch norm accepts channels-last as well (``_batch_norm_impl_index`` and ``_select_batch_norm_backend`` in
``aten/src/ATen/native/Normalization.cpp``), ATen's group norm does not until torch 2.14 (``group_norm.cpp``). cuDNN's
reserve space, which is empty except in its persistent mode, is not counted.
"""

# ruff: noqa: SLF001 - the kernels behind norms are private operators of torch

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._prims_common import suggest_memory_format

from memplan.estimators.fake_tensors.plain_derivatives import needs_derivative
from memplan.estimators.lowering.torch_release import TORCH_RELEASE

if TYPE_CHECKING:
    from collections.abc import Callable

_EUCLIDEAN = 2
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
    if cudnn_enabled and suits_cudnn(image, weight, training=training):
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
    """Normalise a contiguous copy, or from torch 2.15 on the image itself, in its layout as on the CPU."""
    if TORCH_RELEASE < (2, 15):
        image = image.contiguous()
    samples, channels = image.shape[:2]
    normalised: torch.Tensor = torch.ops.aten.native_group_norm(
        image, weight, bias, samples, channels, image.shape[2:].numel(), groups, eps
    )[0]
    return normalised


def suits_cudnn(image: torch.Tensor, weight: torch.Tensor | None, *, training: bool) -> bool:
    """Whether cuDNN normalises a batch of images."""
    if weight is None or image.dim() < 3 or torch.bfloat16 in (image.dtype, weight.dtype):
        return False
    fits = image.shape[0] <= (_LARGEST_TRAINED if training else _LARGEST_EVALUATED)
    return fits and (image.dtype is not torch.float16 or weight.dtype is torch.float32)


def rms_norm(
    own: Callable[..., Any],
    values: torch.Tensor,
    shape: list[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> Any:
    """Normalise by one kernel, except images that lie channels-last and weights of another type.

    Those run as several operators, as all do on the CPU (``rms_norm_symint`` in ``layer_norm.cpp``).
    """
    is_composed = suggest_memory_format(values) is not torch.contiguous_format or values.is_complex()
    if is_composed or (weight is not None and weight.dtype is not values.dtype):
        return own(values, shape, weight, eps)
    return _RmsNorm.apply(values, shape, weight)  # type: ignore[no-untyped-call]  # untyped in torch


class _RmsNorm(torch.autograd.Function):
    """Allocates what ``_fused_rms_norm_cuda`` and its backward allocate (``cuda/layer_norm_kernel.cu``)."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, shape: list[int], weight: torch.Tensor | None) -> torch.Tensor:
        in_order = values.contiguous()
        normalised = torch.empty_like(in_order)
        kept = values.shape[: values.dim() - len(shape)]
        deviations = values.new_empty(*kept, *(1 for _ in shape), dtype=_accumulated(values.dtype))
        ctx.save_for_backward(values, weight, deviations)
        ctx.shape = shape
        return normalised

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, torch.Tensor | None]:
        values, weight, deviations = ctx.saved_tensors
        with torch.no_grad():
            of_values, of_weight = torch.ops.aten._fused_rms_norm_backward(
                gradient, values, ctx.shape, deviations, weight, [True, weight is not None]
            )
        return of_values, None, of_weight


def rms_norm_backward(
    _gradient: torch.Tensor,
    values: torch.Tensor,
    _shape: list[int],
    _deviations: torch.Tensor,
    weight: torch.Tensor | None,
    _wanted: list[bool],
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return gradients as the card's kernel allocates them; the CPU has no such kernel."""
    of_values = torch.empty_like(values, memory_format=torch.contiguous_format)
    return of_values, None if weight is None else torch.empty_like(weight)


def renorm(own: Callable[..., Any], values: torch.Tensor, p: float, dim: int, maxnorm: float) -> Any:
    """Limit the Euclidean norm of each slice; the backward pass accumulates in double precision on the CPU only."""
    if p == _EUCLIDEAN and needs_derivative(values) and not values.is_complex():
        return _Renorm.apply(values, dim, maxnorm)  # type: ignore[no-untyped-call]  # untyped in torch
    return own(values, p, dim, maxnorm)


class _Renorm(torch.autograd.Function):
    """``renorm_backward`` and ``norm_backward`` of ``torch/csrc/autograd/FunctionsManual.cpp``."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, dim: int, maxnorm: float) -> torch.Tensor:
        ctx.save_for_backward(values)
        ctx.dim, ctx.maxnorm = dim, maxnorm
        return values.renorm(_EUCLIDEAN, dim, maxnorm)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (values,) = ctx.saved_tensors
        accumulated = _accumulated(values.dtype)
        others = [each for each in range(values.dim()) if each != ctx.dim % values.dim()]
        norm = torch.linalg.vector_norm(values, _EUCLIDEAN, others, keepdim=True, dtype=accumulated)
        of_norm = (values * gradient).sum(others, keepdim=True, dtype=accumulated)
        through_norm = of_norm * (values / norm).masked_fill_(norm == 0, 0)
        inverse = (norm + 1e-7).reciprocal()
        scaled = inverse * through_norm  # alive until the end of the expression that it is part of
        limited = ctx.maxnorm * inverse * (gradient - scaled)
        del scaled
        return torch.where(norm > ctx.maxnorm, limited.to(gradient.dtype), gradient), None, None


def _accumulated(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which CUDA kernels accumulate (``at::toAccumulateType``)."""
    return dtype if dtype is torch.float64 else torch.float32
