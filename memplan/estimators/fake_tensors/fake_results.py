"""Operators whose rules for fake tensors (torch 2.13) allocate differently from their kernels, or refuse more.

- Sparse results: the rules return no elements, kernels keep all (for embedding bags one per index:
  ``_embedding_bag_sparse_backward`` in ``aten/src/ATen/native/EmbeddingBag.cpp``).
- ``col2im``: the kernel's result keeps a storage as large as the columns (``col2im_cuda`` in
  ``aten/src/ATen/native/cuda/Col2Im.cu``).
- Reduced losses: the result keeps the storage of the elementwise loss (``build_borrowing_binary_op`` and
  ``resize_({})`` in ``aten/src/ATen/native/Loss.cpp``).
- Grouped products: the rule accepts bfloat16 only, kernels other types too (``GroupedMMUtils.h``).
- CTC loss with lengths in tensors: there is no rule, because the kernel reads them (``ctc_loss_cpu_template`` in
  ``aten/src/ATen/native/LossCTC.cpp``).
- Layer norm and batch norm of half types on CUDA keep their statistics in single precision (``acc_type`` in
  ``cuda/layer_norm_kernel.cu`` and ``cuda/Normalization.cu``), and the logarithm of sigmoid keeps nothing
  (``log_sigmoid_forward_cuda`` in ``cuda/Activation.cpp``).
- Gradients of what CUDA normalised lie as it does, those of layers contiguous, not as the gradient of the result
  (``layer_norm_backward_cuda``, ``group_norm_backward`` and ``cudnn_batch_norm_backward``).
- What the CPU pads lies as the image does, and so do gradients (``ReflectionPad.cpp`` and ``ReplicationPadding.cpp`` in
  ``aten/src/ATen/native``).
- Histograms of integers are for CUDA alone (``_histc_cuda`` in ``cuda/SummaryOps.cu``).
- Bags of embeddings remember on CUDA which bag each index is in, also where they are summed (``_embedding_bag_cuda`` in
  ``cuda/EmbeddingBag.cu``).
- Batch norm on the CPU: the result is contiguous or channels-last, and of single pixels, which are both, contiguous
  (``suggest_memory_format_contig`` in ``aten/src/ATen/native/Normalization.cpp``).
"""

# ruff: noqa: SLF001 - some operators are private

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._prims_common import make_contiguous_strides_for, suggest_memory_format

from memplan.estimators.fake_tensors.card_layouts import LAYOUTS_ON_ANY_DEVICE, LAYOUTS_ON_CARDS
from memplan.estimators.fake_tensors.host_recurrence import LAYER, recurrent_layer
from memplan.estimators.fake_tensors.known_values import known_integers
from memplan.training.dense_parts import dense_parts, sparse_of
from memplan.training.half_precision import HALF_TYPES
from memplan.units import round_up

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch._ops import OpOverload

_ATEN = torch.ops.aten
SPARSE_CLONE = _ATEN.clone.default
_COALESCE = _ATEN._coalesce.default
_NORMALISE, _NORMALISE_BACKWARD = _ATEN.native_batch_norm.default, _ATEN.native_batch_norm_backward.default
_ROW_ALIGNMENT = 16  # bytes, of the results of grouped products
_PADS = ("reflection_pad2d", "reflection_pad3d", "replication_pad2d", "replication_pad3d")
NO_REDUCTION = 0


def corrected_result(operator: OpOverload, args: tuple[Any, ...], *, on_host: bool) -> Any:
    """Return the results as the kernel allocates them; None if torch's own rule is right.

    Args:
        operator: the operator.
        args: its positional arguments.
        on_host: whether the CPU kernel runs.
    """
    rule = (_ON_HOST if on_host else _ON_CUDA).get(operator)
    return None if rule is None else rule(*args)


def _sparse_like_the_last(operator: OpOverload, *args: Any) -> torch.Tensor | None:
    like: torch.Tensor = args[-1]
    if like.layout is not torch.sparse_coo:
        return None
    indices, values = (part.clone() for part in dense_parts(like))
    is_coalesced = operator is _COALESCE or like.is_coalesced()  # assumes unique indices
    return sparse_of(indices, values.to(args[0].dtype), shape=list(like.shape), is_coalesced=is_coalesced)


def _normalised(operator: OpOverload, place: int, *args: Any) -> Any:
    image: torch.Tensor = args[place]
    layout = suggest_memory_format(image)
    is_kept = image.is_contiguous(memory_format=layout)
    if operator is _NORMALISE and image.is_contiguous():
        layout = torch.contiguous_format
        is_kept = image.stride() == make_contiguous_strides_for(image.shape)
    if is_kept:
        return None
    return operator(*args[:place], torch.empty_like(image, memory_format=layout), *args[place + 1 :])


def _layer_norm(values: torch.Tensor, shape: list[int], *_: Any) -> tuple[torch.Tensor, ...] | None:
    if values.dtype not in HALF_TYPES:
        return None
    kept = (*values.shape[: values.dim() - len(shape)], *(1 for _ in shape))
    mean, deviation = (values.new_empty(kept, dtype=torch.float32) for _ in range(2))
    return torch.empty_like(values, memory_format=torch.contiguous_format), mean, deviation


def _batch_norm(*args: Any) -> tuple[torch.Tensor, ...] | None:
    image, training = args[0], args[5]
    if not training or image.dtype not in HALF_TYPES:
        return None
    mean, deviation = (image.new_empty(image.shape[1], dtype=torch.float32) for _ in range(2))
    return torch.empty_like(image), mean, deviation


def _like_what_was_normalised(
    operator: OpOverload, gradient: torch.Tensor, values: torch.Tensor, *others: Any
) -> tuple[torch.Tensor, ...] | None:
    layout = suggest_memory_format(values)
    if not values.is_contiguous(memory_format=layout):
        values = torch.empty_like(values, memory_format=layout)  # ATen's kernel, whose gradient lies in order
    elif gradient.is_contiguous(memory_format=layout):
        return None
    results: tuple[torch.Tensor, ...] = operator(torch.empty_like(values), values, *others)
    return results


def _layer_gradients(gradient: torch.Tensor, values: torch.Tensor, *others: Any) -> tuple[torch.Tensor, ...] | None:
    if gradient.is_contiguous():
        return None
    in_order = torch.empty_like(gradient, memory_format=torch.contiguous_format)
    results: tuple[torch.Tensor, ...] = _ATEN.native_layer_norm_backward(in_order, values, *others)
    return results


def _embedding_bag(*args: Any) -> tuple[torch.Tensor, ...]:
    result, bag_of_each, *rest = _ATEN._embedding_bag(*args)
    if not bag_of_each.numel():  # the CPU sums without them
        bag_of_each = args[1].new_empty(args[1].numel())
    return result, bag_of_each, *rest


def _log_sigmoid(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(values), values.new_empty(0)


def _histogram(values: torch.Tensor, bins: int = 100, *_: Any) -> torch.Tensor:
    return values.new_empty(bins)


def _padded_like_the_image(operator: OpOverload, place: int, *args: Any) -> torch.Tensor:
    padded: torch.Tensor = operator(*args)
    return torch.empty_like(padded, memory_format=suggest_memory_format(args[place]))


def _col2im(columns: torch.Tensor, output_size: list[int], kernel_size: list[int], *_: Any) -> torch.Tensor:
    channels = columns.shape[-2] // (kernel_size[0] * kernel_size[1])
    memory = torch.empty_like(columns, memory_format=torch.contiguous_format)
    return memory.resize_(*columns.shape[:-2], channels, *output_size)


def _reduced_in_place(
    values: torch.Tensor, targets: torch.Tensor, reduction: int | None = None, *_: Any
) -> torch.Tensor | None:
    if reduction == NO_REDUCTION:
        return None
    shape = torch.broadcast_shapes(values.shape, targets.shape)  # type: ignore[no-untyped-call]  # untyped in torch
    return torch.empty(shape, dtype=torch.result_type(values, targets)).resize_(())


def _weighted_in_place(values: torch.Tensor, targets: torch.Tensor, _weight: Any = None, *reduction: int) -> Any:
    return _reduced_in_place(values, targets, *reduction)


def _ctc_loss(log_probs: torch.Tensor, targets: torch.Tensor, _: Any, lengths: torch.Tensor, *__: Any) -> Any:
    longest = longest_target(targets, lengths)
    if longest is None:
        return None
    steps, samples = log_probs.shape[:2]
    return log_probs.new_empty(samples), log_probs.new_empty(samples, steps, 2 * longest + 1)


def longest_target(targets: torch.Tensor, lengths: torch.Tensor | Sequence[int]) -> int | None:
    """Return an upper bound of the longest target's length for CTC loss; None if unknown."""
    known = known_integers(lengths) if isinstance(lengths, torch.Tensor) else list(lengths)
    if known is not None:
        return max(known)
    return targets.shape[1] if targets.dim() == 2 else None


def _grouped_product(
    first: torch.Tensor,
    second: torch.Tensor,
    offs: torch.Tensor | None = None,
    _bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return the product, whose rows begin at multiples of 16 bytes (``create_grouped_gemm_output_tensor``)."""
    groups = [len(first if offs is None else offs)] if first.dim() == second.dim() else []
    rows, columns = first.shape[-2], second.shape[-1]
    dtype = out_dtype or first.dtype
    apart = round_up(columns, _ROW_ALIGNMENT // dtype.itemsize)
    shape, strides = (*groups, rows, columns), (rows * apart, apart, 1)
    return first.new_empty_strided(shape, strides[-len(shape) :], dtype=dtype)


def _embedding_bag_backward(gradient: torch.Tensor, indices: torch.Tensor, *others: Any) -> torch.Tensor | None:
    rows, _, _, is_sparse = others[4:8]
    if not is_sparse:
        return None
    values = gradient.new_empty(indices.numel(), gradient.shape[1])
    return sparse_of(indices.reshape(1, -1), values, shape=[rows, gradient.shape[1]], is_coalesced=False)


def _default_of(name: str) -> OpOverload:
    operator: OpOverload = getattr(_ATEN, name).default
    return operator


_ON_ANY_DEVICE: dict[OpOverload, Callable[..., Any]] = {
    _ATEN.col2im.default: _col2im,
    LAYER: recurrent_layer,
    _ATEN._grouped_mm.default: _grouped_product,
    _ATEN._ctc_loss.Tensor: _ctc_loss,
    _ATEN._embedding_bag_backward.default: _embedding_bag_backward,
    _ATEN.mse_loss.default: _reduced_in_place,
    _ATEN.smooth_l1_loss.default: _reduced_in_place,
    _ATEN.soft_margin_loss.default: _reduced_in_place,
    _ATEN.binary_cross_entropy.default: _weighted_in_place,
    **LAYOUTS_ON_ANY_DEVICE,
    **{each: partial(_sparse_like_the_last, each) for each in (SPARSE_CLONE, _COALESCE, _ATEN.sparse_mask.default)},
}
_ON_HOST: dict[OpOverload, Callable[..., Any]] = {
    **_ON_ANY_DEVICE,
    _NORMALISE: partial(_normalised, _NORMALISE, 0),
    _NORMALISE_BACKWARD: partial(_normalised, _NORMALISE_BACKWARD, 1),
    **{each: partial(_padded_like_the_image, each, 0) for each in map(_default_of, _PADS)},
    **{each: partial(_padded_like_the_image, each, 1) for each in map(_default_of, map("{}_backward".format, _PADS))},
}
_ON_CUDA: dict[OpOverload, Callable[..., Any]] = {
    **_ON_ANY_DEVICE,
    **LAYOUTS_ON_CARDS,
    _NORMALISE: _batch_norm,
    **{
        each: partial(_like_what_was_normalised, each)
        for each in (_NORMALISE_BACKWARD, _ATEN.native_group_norm_backward.default)
    },
    _ATEN.native_layer_norm.default: _layer_norm,
    _ATEN.native_layer_norm_backward.default: _layer_gradients,
    _ATEN.log_sigmoid_forward.default: _log_sigmoid,
    _ATEN._embedding_bag.default: _embedding_bag,
    _ATEN.histc.default: _histogram,
}
