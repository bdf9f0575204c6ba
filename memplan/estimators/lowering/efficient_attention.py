"""Temporaries of CUDA's memory-efficient attention (``transformers/cuda/mem_eff_attention``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memplan.estimators.lowering.contiguous_copies import copies, copies_by_position
from memplan.estimators.lowering.determinism import requires_deterministic
from memplan.estimators.lowering.temporary_bytes import FP32_BYTES, TemporaryBytes
from memplan.estimators.lowering.torch_release import TORCH_RELEASE
from memplan.estimators.temporaries.ruled_blocks import ruled_blocks
from memplan.units import ceil_div, round_up

if TYPE_CHECKING:
    import torch

    from memplan.estimators.lowering.temporary_bytes import Blocks

_BLOCK_HEADER_BYTES = 16  # a lock and a counter before each block (``GradQTempStorage``)
_BLOCK = 64  # keys of a block, and rows and columns of the smallest blocks
_WIDEST_IN_REGISTERS = 128  # head size up to which the output stays in registers (``kMaxK`` of the forward kernels)
_TURING, _AMPERE = (7, 5), (8, 0)
_DROPOUT, _DROPOUT_BY_POSITION = 5, 8  # places of its probability among the arguments of the forward passes
_SPLIT_HEADS = 200  # heads of a batch times splits of their keys, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardKernel:
    """A kernel of the backward pass: how it sums gradients in single precision, in blocks.

    Args:
        rows: queries of a block of the query's gradient (``kBlockSizeI``).
        columns: numbers of a head in such a block.
        sums_all: whether gradients of key and value are summed in memory, too (``kNeedsAccumGradK``).
    """

    rows: int
    columns: int
    sums_all: bool = False


def backward_kernel(capability: tuple[int, int], widest: int, *, is_half: bool) -> BackwardKernel:
    """Return the first kernel that a card has the shared memory for (``dispatch_cutlassB`` in ``kernels/cutlassB.h``).

    Args:
        capability: compute capability of the card.
        widest: head size, of keys or values.
        is_half: whether numbers are of two bytes.
    """
    is_roomy = capability >= _AMPERE and capability[0] < 12 and capability not in ((8, 6), (8, 9))
    if widest <= _BLOCK or not (is_half or is_roomy):
        return BackwardKernel(rows=_BLOCK, columns=_BLOCK)
    if not is_half or widest > _WIDEST_IN_REGISTERS:
        return BackwardKernel(rows=2 * _BLOCK, columns=_BLOCK, sums_all=is_half)
    if is_roomy:
        return BackwardKernel(rows=2 * _BLOCK, columns=2 * _BLOCK)
    widest_without_sums = _WIDEST_IN_REGISTERS if capability < _AMPERE else 96 if capability[0] == 8 else _BLOCK
    sums_all = widest > widest_without_sums
    return BackwardKernel(rows=_BLOCK if sums_all else 2 * _BLOCK, columns=_BLOCK, sums_all=sums_all)


def efficient_forward(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Fp32 accumulator of the output of wide heads in half types (``kernel_forward.h``).

    Keys wider than values, as in latent attention, make a head wide, too. Seed and offset of the random numbers lie on
    the host; from torch 2.14 on, where nothing is dropped out, they lie unused on the card
    (``_efficient_attention_forward`` in ``attention.cu``).
    """
    on_host = _states_on_host(args[_DROPOUT] if len(args) > _DROPOUT else 0.0)
    return TemporaryBytes(after_results=_summed_apart(*args[:3]), results_on_host=on_host)


def efficient_forward_by_position(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Return the same where heads follow positions, as for packed sequences; the results end with two lengths."""
    on_host = _states_on_host(args[_DROPOUT_BY_POSITION])
    return TemporaryBytes(after_results=_summed_apart(*args[:3]), results_on_host=on_host + 2 if on_host else 0)


def _states_on_host(dropout: float) -> int:
    """Return how many of seed and offset lie on the host."""
    return 2 if dropout > 0 or TORCH_RELEASE < (2, 14) else 0


def _summed_apart(query: torch.Tensor, _key: torch.Tensor, value: torch.Tensor) -> tuple[int, ...]:
    is_wide = max(query.shape[-1], value.shape[-1]) > _WIDEST_IN_REGISTERS
    accumulator_bytes = query.shape[:-1].numel() * value.shape[-1] * FP32_BYTES
    return (accumulator_bytes,) if is_wide and query.element_size() < FP32_BYTES else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _BackwardCall:
    """The sizes of one backward pass.

    Args:
        samples: sequences of the batch.
        rows: queries of all of them and all heads.
        length: queries of the longest.
        key_length: keys of the longest.
        heads: of the query.
        head_dim: numbers of a head of the query and the key.
        value_dim: numbers of a head of the value.
        is_half: whether numbers are of two bytes.
        expanded: bytes of the gradients of keys and values by the query's heads, where these share them.
    """

    samples: int
    rows: int
    length: int
    key_length: int
    heads: int
    head_dim: int
    value_dim: int
    is_half: bool
    expanded: tuple[int, ...] = ()


def efficient_backward(args: tuple[Any, ...], _result: Any, *, capability: tuple[int, int]) -> TemporaryBytes:
    """Return what the backward pass takes where positions follow heads, which it reads by position."""
    gradient, query, key, value = args[:4]
    batch, heads, length, head_dim = query.shape
    call = _BackwardCall(
        samples=batch,
        rows=batch * heads * length,
        length=length,
        key_length=key.shape[2],
        heads=heads,
        head_dim=head_dim,
        value_dim=value.shape[-1],
        is_half=gradient.element_size() < FP32_BYTES,
        expanded=() if key.shape[1] == heads else tuple(heads // each.shape[1] * each.nbytes for each in (key, value)),
    )
    return TemporaryBytes(throughout=copies_by_position(gradient), after_results=_backward_blocks(call, capability))


def efficient_backward_by_position(
    args: tuple[Any, ...], _result: Any, *, capability: tuple[int, int]
) -> TemporaryBytes:
    """Return what the backward pass takes where heads follow positions, as for packed sequences.

    Each of these counts as if it were the longest.
    """
    gradient, query, key, value = args[:4]
    ends, longest, longest_key = args[6], *args[8:10]
    batch, length, heads, head_dim = query.shape
    call = _BackwardCall(
        samples=batch if ends is None else len(ends) - 1,
        rows=batch * length * heads,
        length=length if ends is None else longest,
        key_length=key.shape[1] if ends is None else longest_key,
        heads=heads,
        head_dim=head_dim,
        value_dim=value.shape[-1],
        is_half=gradient.element_size() < FP32_BYTES,
    )
    return TemporaryBytes(throughout=copies((gradient,)), after_results=_backward_blocks(call, capability))


def _backward_blocks(call: _BackwardCall, capability: tuple[int, int]) -> Blocks:
    """Row sums, then accumulators of the query's gradient, and of the others' where the kernel sums them in memory.

    Shared heads have gradients of key and value for every query head, which are summed afterwards. Row sums of half
    types are computed by the kernel, but for wide heads on Volta (``kKernelComputesDelta``); all others are the sum of
    a product in fp32, as large as the output, and then copied (``attention_backward.cu``).
    """
    kernel = backward_kernel(capability, max(call.head_dim, call.value_dim), is_half=call.is_half)
    sums_bytes = call.rows * FP32_BYTES
    product_bytes = call.rows * call.value_dim * FP32_BYTES
    product: Blocks = () if call.is_half else ((product_bytes, sums_bytes),)
    if kernel.sums_all and capability < _TURING:
        product = ((product_bytes,) * 3 + (sums_bytes,),)  # its factors in fp32 first
    heads_of_batch = call.samples * call.heads
    accumulators: Blocks = (heads_of_batch * _query_bytes(call.length, call.head_dim, kernel.rows, kernel.columns),)
    if kernel.sums_all:
        rule = AllSums(
            key_width=call.head_dim,
            value_width=call.value_dim,
            rows=kernel.rows,
            is_deterministic=requires_deterministic(),
        )
        accumulators = ruled_blocks(rule, heads_of_batch, call.length, call.key_length)
    return (*call.expanded, sums_bytes, *product, *accumulators)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllSums:
    """The accumulators of all three gradients, as one block (``workspace_size``).

    Where few heads leave the card idle, blocks of keys are split among several accumulators (``num_splits_key`` in
    ``attention_backward.cu``), unless results are to repeat.

    Args:
        key_width: numbers of a head of query and key.
        value_width: numbers of a head of the value.
        rows: queries of a block of the query's gradient.
        is_deterministic: whether only algorithms that repeat their results are used.
    """

    key_width: int
    value_width: int
    rows: int
    is_deterministic: bool = False

    def __call__(self, heads: int, queries: int, keys: int) -> tuple[int]:
        """Return the bytes for all heads of a batch, and lengths of its queries and keys."""
        most = 1 if self.is_deterministic else _SPLIT_HEADS // max(heads, 1)
        splits = max(min(ceil_div(keys, _BLOCK), most), 1)
        widths = (round_up(each, self.rows) for each in (self.key_width, self.value_width))
        split_bytes = _BLOCK * sum(widths) * FP32_BYTES
        return (heads * (_query_bytes(queries, self.key_width, self.rows, _BLOCK) + splits * split_bytes),)


def _query_bytes(length: int, width: int, rows: int, columns: int) -> int:
    """Return the bytes of the blocks in which the gradient of one head of the query is summed."""
    return ceil_div(length, rows) * ceil_div(width, columns) * (rows * columns * FP32_BYTES + _BLOCK_HEADER_BYTES)
