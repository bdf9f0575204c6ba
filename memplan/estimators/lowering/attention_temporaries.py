"""Temporaries of CUDA's fused attention kernels."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from memplan.estimators.lowering.contiguous_copies import copies, copies_by_position
from memplan.estimators.lowering.temporary_bytes import FP32_BYTES, TemporaryBytes
from memplan.estimators.temporaries.ruled_blocks import ruled_blocks
from memplan.units import ceil_div, round_up

if TYPE_CHECKING:
    from memplan.estimators.lowering.temporary_bytes import Blocks, Rule

_HOPPER = (9, 0)
_ENGINE_BYTES = 128  # what cuDNN's engines ask for besides
_BLOCK_HEADER_BYTES = 16  # a lock and a counter before each block (``GradQTempStorage``)
_WIDEST_IN_REGISTERS = 128  # head size up to which sums stay in registers, of key or value (``kMaxK`` of kernels)
_BLOCK = 64  # rows and columns of the accumulator's blocks; wider heads have twice the rows
_SPLIT_HEADS = 200  # heads of a batch, their splits included


def attention_rules(capability: tuple[int, int]) -> dict[str, Rule]:
    """Return the rules for a card of a compute capability, by operator."""
    on_cudnn = partial(_cudnn_backward, accumulates_narrow_heads=capability != _HOPPER)
    return {
        "aten._scaled_dot_product_flash_attention_backward": flash_backward,
        "aten._scaled_dot_product_efficient_attention": efficient_forward,
        "aten._scaled_dot_product_efficient_attention_backward": efficient_backward,
        "aten._scaled_dot_product_cudnn_attention_backward": on_cudnn,
    }


def flash_backward(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Row sums, and the fp32 accumulator of the query's gradient (``flash_api.cpp``, ``mha_bwd``).

    Output and gradient are read by position first, then by head (``_flash_attention_backward`` in
    ``attention_backward.cu``).
    """
    gradient, query, key, _, output = args[:5]
    batch, heads, length, head_dim = query.shape
    rows = batch * heads * round_up(length, 128)
    accumulator_bytes = rows * round_up(head_dim, 32 if head_dim <= 128 else 64) * FP32_BYTES
    expanded: tuple[int, ...] = ()
    if key.shape[1] != heads:  # dk and dv of every query head, summed over the group afterwards
        expanded = (batch * heads * key.shape[2] * head_dim * key.element_size(),) * 2
    return TemporaryBytes(
        throughout=copies_by_position(gradient, output),
        after_results=(rows * FP32_BYTES, accumulator_bytes, *expanded),
    )


def efficient_forward(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Fp32 accumulator of the output of wide heads in half types (``mem_eff_attention/kernel_forward.h``).

    Keys wider than values, as in latent attention, make a head wide, too. Seed and offset of the random numbers lie on
    the host (``_efficient_attention_forward`` in ``attention.cu``).
    """
    query, _, value = args[:3]
    is_wide = max(query.shape[-1], value.shape[-1]) > _WIDEST_IN_REGISTERS
    accumulator_bytes = query.shape[:-1].numel() * value.shape[-1] * FP32_BYTES
    is_summed_apart = is_wide and query.element_size() < FP32_BYTES
    return TemporaryBytes(after_results=(accumulator_bytes,) if is_summed_apart else (), results_on_host=2)


def efficient_backward(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Row sums, then an fp32 accumulator of the query's gradient, in blocks (``workspace_elements_gq``).

    Shared heads have gradients of key and value for every query head, which are summed afterwards. Row sums of half
    types are computed by the kernel; for fp32 they are the sum of a product as large as the output, and then copied.
    Wide heads in half types have accumulators of the key's and value's gradients, too (``attention_backward.cu`` and
    ``mem_eff_attention/kernel_backward.h``; cards before Volta accumulate in place).
    """
    gradient, query, key, value = args[:4]
    batch, heads, length, head_dim = query.shape
    widest = max(head_dim, value.shape[-1])
    sums_bytes = batch * heads * length * FP32_BYTES
    is_half = gradient.element_size() < FP32_BYTES
    product = () if is_half else ((gradient.nbytes, sums_bytes),)
    expanded = () if key.shape[1] == heads else tuple(heads // each.shape[1] * each.nbytes for each in (key, value))
    accumulators: Blocks
    if is_half and widest > _WIDEST_IN_REGISTERS:
        widths = (head_dim, value.shape[-1])
        accumulators = ruled_blocks(wide_accumulator_bytes, batch * heads, length, key.shape[2], *widths)
    else:
        rows = _BLOCK if widest <= _BLOCK else 2 * _BLOCK
        accumulators = (batch * heads * _query_blocks_bytes(length, head_dim, rows, rows if is_half else _BLOCK),)
    return TemporaryBytes(
        throughout=copies_by_position(gradient), after_results=(*expanded, sums_bytes, *product, *accumulators)
    )


def wide_accumulator_bytes(heads: int, queries: int, keys: int, key_width: int, value_width: int) -> tuple[int]:
    """Return the bytes of the accumulators of all gradients of wide heads in half types, as one block.

    Where few heads leave the card idle, blocks of keys are split among so many accumulators that there are 200
    (``num_splits_key`` in ``attention_backward.cu``).

    Args:
        heads: of the whole batch.
        queries: length of the query.
        keys: length of key and value.
        key_width: numbers of a head of query and key.
        value_width: numbers of a head of the value.
    """
    rows = 2 * _BLOCK
    splits = max(min(ceil_div(keys, _BLOCK), _SPLIT_HEADS // max(heads, 1)), 1)
    split_bytes = _BLOCK * (round_up(key_width, rows) + round_up(value_width, rows)) * FP32_BYTES
    return (heads * (_query_blocks_bytes(queries, key_width, rows, _BLOCK) + splits * split_bytes),)


def _query_blocks_bytes(length: int, width: int, rows: int, columns: int) -> int:
    """Return the bytes of the blocks in which the gradient of one head of the query is summed."""
    return ceil_div(length, rows) * ceil_div(width, columns) * (rows * columns * FP32_BYTES + _BLOCK_HEADER_BYTES)


def _cudnn_backward(args: tuple[Any, ...], _result: Any, *, accumulates_narrow_heads: bool) -> TemporaryBytes:
    """Fp32 accumulator of the query's gradient, and the row sums; then what the engine takes.

    The first two are cudnn-frontend's part of the workspace (``get_fe_workspace_size_node`` in
    ``scaled_dot_product_flash_attention.h``). The engine that cuDNN 9.20 proposes for capabilities 8.0 to 12.0 has an
    accumulator of its own, of eight rows at once, but for heads up to 64 wide on Hopper; and, where heads are
    shared, gradients of key and value for every query head. ``run_cudnn_SDP_bprop`` in ``cudnn/MHA.cpp`` copies a
    gradient whose last dimension is not dense.
    """
    gradient, query, key = args[:3]
    batch, heads, length, head_dim = query.shape
    workspace_bytes = batch * heads * length * (head_dim + 1) * FP32_BYTES
    if accumulates_narrow_heads or head_dim > _BLOCK:
        workspace_bytes += batch * heads * round_up(length, 8) * head_dim * FP32_BYTES + _ENGINE_BYTES
    else:
        workspace_bytes += 2 * _ENGINE_BYTES
    if key.shape[1] != heads:
        workspace_bytes += 2 * batch * heads * key.shape[2] * head_dim * key.element_size()
    copied = () if gradient.stride(-1) == 1 else copies((gradient,))
    return TemporaryBytes(after_results=(*copied, workspace_bytes))
