"""Temporaries of CUDA's fused attention kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memplan.estimators.lowering.temporary_bytes import NO_TEMPORARIES, TemporaryBytes

if TYPE_CHECKING:
    import torch

_FP32 = 4
_WIDEST_IN_REGISTERS = 128  # head size up to which the output stays in registers (``kKeepOutputInRF``)
_WIDEST_IN_SMALL_BLOCKS = 64  # head size up to which blocks have 64 rows, else 128


def flash_backward(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Fp32 accumulator of the query's gradient, and the row sums (``flash_api.cpp``, ``mha_bwd``)."""
    gradient, query, key = args[:3]
    batch, heads, length, head_dim = query.shape
    rows = batch * heads * _rounded_up(length, 128)
    accumulator = rows * _rounded_up(head_dim, 32 if head_dim <= 128 else 64) * _FP32
    expanded = 0
    if key.shape[1] != heads:  # dk and dv of every query head, summed over the group afterwards
        expanded = 2 * batch * heads * key.shape[2] * head_dim * key.element_size()
    return TemporaryBytes(around_results=_copied_bytes(gradient), after_results=accumulator + rows * _FP32 + expanded)


def efficient_forward(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Fp32 accumulator of the output of wide heads in half types (``mem_eff_attention/kernel_forward.h``)."""
    query, _, value = args[:3]
    if query.element_size() == _FP32 or value.shape[-1] <= _WIDEST_IN_REGISTERS:
        return NO_TEMPORARIES
    return TemporaryBytes(after_results=query.shape[:-1].numel() * value.shape[-1] * _FP32)


def efficient_backward(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Row sums, and an fp32 accumulator of the query's gradient, in blocks (``workspace_elements_gq``).

    Row sums of half types are computed by the kernel; for fp32 they are the sum of a product as large as the output
    (``attention_backward.cu`` and ``mem_eff_attention/kernel_backward.h``; cards before Volta accumulate in place).
    """
    gradient, query = args[:2]
    batch, heads, length, head_dim = query.shape
    sums = batch * heads * length * _FP32
    block = 64 if head_dim <= _WIDEST_IN_SMALL_BLOCKS else 128
    accumulator = batch * heads * _rounded_up(length, block) * _rounded_up(head_dim, 64) * _FP32
    product = gradient.nbytes + sums if gradient.element_size() == _FP32 else 0
    return TemporaryBytes(around_results=_copied_bytes(gradient), after_results=sums + max(accumulator, product))


def cudnn_backward(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Fp32 accumulator of the query's gradient, and the row sums: cudnn-frontend's part of the workspace.

    Source: ``get_fe_workspace_size_node`` in ``scaled_dot_product_flash_attention.h``, from cuDNN 9 on. The engine that
    cuDNN chooses may need more. ``run_cudnn_SDP_bprop`` in ``cudnn/MHA.cpp`` copies a gradient whose last
    dimension is not dense.
    """
    gradient, query = args[:2]
    rows = query.shape[:-1].numel()
    copied = 0 if gradient.stride(-1) == 1 else gradient.nbytes
    return TemporaryBytes(after_results=copied + rows * (query.shape[-1] + 1) * _FP32)


def _copied_bytes(gradient: torch.Tensor) -> int:
    """Return the copy of the output's gradient, which kernels read by position first, then by head."""
    return 0 if gradient.transpose(1, 2).is_contiguous() else gradient.nbytes


def _rounded_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
