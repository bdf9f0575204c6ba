"""What CUDA kernels allocate inside and give back before they return, which no dispatch mode can see.

Each rule answers the bytes that are alive together beside the operator's results. Sources are the CUDA kernels of
ATen (``aten/src/ATen/native``) unless a rule says otherwise; rounding to blocks is left to the allocator.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from memplan.estimators.lowering.composite_temporaries import composite_rules, selected_positions
from memplan.estimators.lowering.hidden_bytes import NOTHING_HIDDEN, HiddenBytes
from memplan.estimators.lowering.top_k import top_k_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

_INT64 = 8
_FP32 = 4


def cuda_hidden_bytes(operator: str, args: tuple[Any, ...], result: Any) -> HiddenBytes:
    """Return what a CUDA kernel of ATen takes for itself while it runs; convolutions have rules of their own.

    Args:
        operator: name without overload, e.g. ``aten.embedding_dense_backward``.
        args: the operator's positional arguments.
        result: what it returned.
    """
    composite, rule = _COMPOSITES.get(operator), _RULES.get(operator)
    hidden = NOTHING_HIDDEN if composite is None else composite(args, result)
    return hidden if rule is None else replace(hidden, beside=hidden.beside + rule(args, result))


def has_rule(operator: str) -> bool:
    """Whether :func:`cuda_hidden_bytes` knows what this operator's kernel takes."""
    return operator in _RULES or operator in _COMPOSITES


def _flash_backward(args: tuple[Any, ...], _result: Any) -> int:
    """Fp32 accumulator of the query's gradient, and the row sums (``flash_api.cpp``, ``mha_bwd``)."""
    query: torch.Tensor = args[1]
    key: torch.Tensor = args[2]
    batch, heads, length, head_dim = query.shape
    rows = _rounded_up(length, 128)
    accumulator = batch * heads * rows * _rounded_up(head_dim, 32) * _FP32
    expanded = 0
    if key.shape[1] != heads:  # dk and dv of every query head, summed over the group afterwards
        expanded = 2 * batch * heads * key.shape[2] * head_dim * key.element_size()
    return accumulator + batch * heads * rows * _FP32 + expanded


def _efficient_backward(args: tuple[Any, ...], _result: Any) -> int:
    """Row sums, and an fp32 accumulator of the query's gradient for half types (``attention_backward.cu``)."""
    query: torch.Tensor = args[1]
    batch, heads, length, head_dim = query.shape
    delta = batch * heads * length * _FP32
    if query.dtype is torch.float32:
        return delta
    return delta + batch * heads * _rounded_up(length, 64) * _rounded_up(head_dim, 64) * _FP32


def _embedding_backward(args: tuple[Any, ...], result: Any) -> int:
    """Sorted, original and running indices, the sort's own pair, segment offsets and partial sums (``Embedding.cu``).

    At most 3072 indices take another kernel without any of these; that it is counted there too errs by kilobytes.
    """
    indices: int = args[1].numel()
    gradient: torch.Tensor = result
    rows, width = gradient.shape
    per_segment = 2 * _INT64 + (width * _FP32 if gradient.dtype in (torch.float16, torch.bfloat16) else 0)
    return 5 * indices * _INT64 + indices * per_segment // 10 + min(indices, rows) * per_segment


def _index_put(args: tuple[Any, ...], _result: Any) -> int:
    """Linear, sorted, original and running indices of an accumulating ``index_put`` (``Indexing.cu``)."""
    accumulate = len(args) > 3 and bool(args[3])
    if not accumulate:
        return 0
    values: torch.Tensor = args[2]
    return 6 * selected_positions(args[0], args[1], values) * _INT64 + values.numel() * values.element_size()


def _masked_scatter(args: tuple[Any, ...], _result: Any) -> int:
    """Where each element of the mask reads from, counted up to it (``IndexKernel.cpp``, ``maskPrefixSum``)."""
    target: torch.Tensor = args[0]
    return target.numel() * _INT64


def _sort(args: tuple[Any, ...], _result: Any) -> int:
    """A second pair of keys and indices (``Sort.cpp``, segmented sort)."""
    keys: torch.Tensor = args[0]
    return keys.numel() * (keys.element_size() + _INT64)


def _batched_product(args: tuple[Any, ...], _result: Any) -> int:
    """Copies of operands whose strides BLAS cannot take (``Blas.cpp``, ``prepare_batch_matrix_for_cublas``)."""
    return sum(
        each.numel() * each.element_size()
        for each in args
        if isinstance(each, torch.Tensor) and each.dim() >= 2 and not _has_blas_strides(each)
    )


def _has_blas_strides(matrix: torch.Tensor) -> bool:
    rows, columns = matrix.shape[-2:]
    row_step, column_step = matrix.stride()[-2:]
    return (column_step == 1 and row_step >= max(1, columns)) or (row_step == 1 and column_step >= max(1, rows))


def _rounded_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


_COMPOSITES = composite_rules(on_cuda=True)
_RULES: dict[str, Callable[[tuple[Any, ...], Any], int]] = {
    "aten._scaled_dot_product_flash_attention_backward": _flash_backward,
    "aten._scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "aten._scaled_dot_product_cudnn_attention_backward": _flash_backward,
    "aten.embedding_dense_backward": _embedding_backward,
    "aten.index_put": _index_put,
    "aten.index_put_": _index_put,
    "aten._index_put_impl_": _index_put,
    "aten._unsafe_index_put": _index_put,
    "aten.masked_scatter": _masked_scatter,
    "aten.masked_scatter_": _masked_scatter,
    "aten.sort": _sort,
    "aten.topk": top_k_bytes,
    "aten.bmm": _batched_product,
    "aten.baddbmm": _batched_product,
    "aten.baddbmm_": _batched_product,
    "aten.mm": _batched_product,
    "aten.addmm": _batched_product,
    "aten.addmm_": _batched_product,
}
