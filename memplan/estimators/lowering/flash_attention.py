"""Temporaries of flash attention's kernels, PyTorch's own and those of the flash_attn package, which are the same code.

Source: ``csrc/flash_attn/flash_api.cpp`` of either. Lengths of packed sequences are those of all of them together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from memplan.estimators.lowering.contiguous_copies import copies_by_position
from memplan.estimators.lowering.determinism import requires_deterministic
from memplan.estimators.lowering.temporary_bytes import FP32_BYTES, NO_TEMPORARIES, TemporaryBytes
from memplan.estimators.temporaries.ruled_blocks import ruled_blocks
from memplan.units import ceil_div, round_up

if TYPE_CHECKING:
    import torch

    from memplan.estimators.lowering.temporary_bytes import Blocks, Rule

_PADDED_LENGTH = 128  # to a multiple of which rows of gradients are padded
_ROWS_AT_ONCE = 64  # queries of a block, where keys are split
_MOST_SPLITS = 128
_BUSY_SHARE = 0.8  # of a card that runs two blocks on each multiprocessor: keys are not split then
_NEARLY_BEST = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashCall:
    """The sizes of one call.

    Args:
        samples: sequences of the batch.
        length: queries of each; of all together where they are packed.
        heads: of the query.
        key_length: as ``length``, of keys.
        key_heads: of the keys.
        head_dim: numbers of a head.
        element_bytes: of a number of query and key.
        is_packed: whether sequences follow each other without padding.
    """

    samples: int
    length: int
    heads: int
    key_length: int
    key_heads: int
    head_dim: int
    element_bytes: int
    is_packed: bool = False

    @property
    def padded_rows(self) -> int:
        """Rows of the accumulator of the query's gradient, over all heads."""
        if self.is_packed:
            return self.heads * (self.length + _PADDED_LENGTH * self.samples)
        return self.samples * self.heads * round_up(self.length, _PADDED_LENGTH)

    @property
    def expanded_key_bytes(self) -> int:
        """Bytes of the keys, or of their gradient, if every head of the query had its own."""
        sequences = 1 if self.is_packed else self.samples
        return sequences * self.key_length * self.heads * self.head_dim * self.element_bytes


@dataclass(frozen=True, slots=True)
class FlashKernels:
    """The kernels on one card.

    Args:
        multiprocessors: of the card; None where only its memory is known, and nothing is shared among them.
    """

    multiprocessors: int | None

    def rules(self) -> dict[str, Rule]:
        """Return the rules by operator."""
        return {
            "aten._scaled_dot_product_flash_attention": self._forward_by_head,
            "aten._scaled_dot_product_flash_attention_backward": self._backward_by_head,
            "aten._flash_attention_forward": self._forward_by_position,
            "aten._flash_attention_backward": self._backward_by_position,
            "flash_attn._flash_attn_forward": self._forward_of_package,
            "flash_attn._flash_attn_backward": self._backward_of_package,
            "flash_attn._flash_attn_varlen_forward": _nothing,
            "flash_attn._flash_attn_varlen_backward": self._packed_backward_of_package,
        }

    def _forward_by_head(self, args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
        return self._forward(_by_head(*args[:2]), dropout=args[3] if len(args) > 3 else 0.0)

    def _forward_of_package(self, args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
        return self._forward(_by_position(*args[:2]), dropout=args[3])

    def _backward_by_head(self, args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
        """Output and gradient are read by position (``_flash_attention_backward`` in ``attention_backward.cu``)."""
        gradient, query, key, _, output = args[:5]
        copied = copies_by_position(gradient, output)
        blocks = self._backward(_by_head(query, key), is_deterministic=requires_deterministic())
        return TemporaryBytes(throughout=copied, after_results=blocks)

    def _forward_by_position(self, args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
        """Keys of packed sequences are not split."""
        query, key = args[:2]
        return self._forward(_by_position(query, key), dropout=args[7]) if args[3] is None else NO_TEMPORARIES

    def _backward_by_position(self, args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
        if args[6] is not None:
            return self.packed_backward(args)
        blocks = self._backward(_by_position(*args[1:3]), is_deterministic=requires_deterministic())
        return TemporaryBytes(after_results=blocks)

    def packed_backward(self, args: tuple[Any, ...]) -> TemporaryBytes:
        """Return what the backward pass takes, given the arguments of ``aten._flash_attention_backward``."""
        call = _packed(*args[1:3], sequence_ends=args[6])
        return TemporaryBytes(after_results=self._backward(call, is_deterministic=requires_deterministic()))

    def _backward_of_package(self, args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
        blocks = self._backward(_by_position(*args[1:3]), is_deterministic=args[16])
        return TemporaryBytes(after_results=blocks[1:])  # the sums are its result

    def _packed_backward_of_package(self, args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
        blocks = self._backward(_packed(*args[1:3], sequence_ends=args[9]), is_deterministic=args[20])
        return TemporaryBytes(after_results=blocks[1:])  # as above

    def _forward(self, call: FlashCall, *, dropout: float) -> TemporaryBytes:
        """Sums and outputs of parts of the keys, among which idle multiprocessors share the work, without dropout.

        Source: ``set_params_splitkv``. A single query is read as so many as share its keys.
        """
        if dropout or self.multiprocessors is None:
            return NO_TEMPORARIES
        heads, length = call.heads, call.length
        if length == 1 and call.key_heads < heads:
            heads, length = call.key_heads, heads // call.key_heads
        rule = SplitKeys(head_dim=call.head_dim, multiprocessors=self.multiprocessors)
        if not any(rule(heads, length, call.key_length)):  # one sample keeps the card busy, and so do more
            return NO_TEMPORARIES
        return TemporaryBytes(after_results=ruled_blocks(rule, call.samples * heads, length, call.key_length))

    def _backward(self, call: FlashCall, *, is_deterministic: bool) -> Blocks:
        """Row sums, the fp32 accumulator of the query's gradient, and gradients of shared keys and values by head.

        The last are summed over the heads that share them afterwards.
        """
        sums_bytes = call.padded_rows * FP32_BYTES
        accumulator_bytes = sums_bytes * _rounded(call.head_dim)
        accumulator: Blocks = (accumulator_bytes,)
        if is_deterministic and self.multiprocessors is not None:
            rule = AccumulatorCopies(self.multiprocessors)
            accumulator = ruled_blocks(rule, call.samples * call.heads, accumulator_bytes)
        expanded = (call.expanded_key_bytes,) * 2 if call.key_heads != call.heads else ()
        return (sums_bytes, *accumulator, *expanded)


def _nothing(_args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    return NO_TEMPORARIES


def _by_head(query: torch.Tensor, key: torch.Tensor) -> FlashCall:
    return _by_position(query.transpose(1, 2), key.transpose(1, 2))


def _by_position(query: torch.Tensor, key: torch.Tensor) -> FlashCall:
    samples, length, heads, head_dim = query.shape
    _, key_length, key_heads, _ = key.shape
    return FlashCall(
        samples=samples,
        length=length,
        heads=heads,
        key_length=key_length,
        key_heads=key_heads,
        head_dim=head_dim,
        element_bytes=query.element_size(),
    )


def _packed(query: torch.Tensor, key: torch.Tensor, *, sequence_ends: torch.Tensor) -> FlashCall:
    """Return the sizes of a call on packed sequences, given where each ends and the first begins."""
    call = _by_position(query[None], key[None])
    return replace(call, samples=sequence_ends.shape[0] - 1, is_packed=True)


def _rounded(head_dim: int) -> int:
    return round_up(head_dim, 32 if head_dim <= 128 else 64)


@dataclass(frozen=True, slots=True)
class AccumulatorCopies:
    """The accumulator of deterministic algorithms, one copy for each multiprocessor that shares the work on a head.

    Args:
        multiprocessors: of the card.
    """

    multiprocessors: int

    def __call__(self, heads: int, accumulator_bytes: int) -> tuple[int]:
        """Return the bytes for all heads of a batch, given those of one copy."""
        return (ceil_div(self.multiprocessors, heads) * accumulator_bytes,)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitKeys:
    """What is allocated where keys are split: sums of the parts, then their outputs, in single precision.

    Args:
        head_dim: numbers of a head.
        multiprocessors: of the card.
    """

    head_dim: int
    multiprocessors: int

    def __call__(self, heads: int, queries: int, keys: int) -> tuple[int, int]:
        """Return the bytes for all heads of a batch, and lengths of its queries and keys; 0 where none is split."""
        keys_at_once = 256 if self.head_dim <= 64 else 128 if self.head_dim <= 128 else 64
        splits = self._splits(heads * ceil_div(queries, _ROWS_AT_ONCE), ceil_div(keys, keys_at_once))
        sums_bytes = splits * heads * queries * FP32_BYTES if splits > 1 else 0
        return (sums_bytes, sums_bytes * _rounded(self.head_dim))

    def _splits(self, row_blocks: int, key_blocks: int) -> int:
        """Return the fewest parts that keep the card nearly as busy as the best number (``num_splits_heuristic``)."""
        places = 2 * self.multiprocessors
        if row_blocks >= _BUSY_SHARE * places:
            return 1
        most = min(_MOST_SPLITS, places, key_blocks)
        fewest = {ceil_div(key_blocks, splits): splits for splits in range(most, 0, -1)}  # for each size of a part
        busy = {
            splits: row_blocks * splits / places / ceil_div(row_blocks * splits, places) for splits in fewest.values()
        }
        best = max(busy.values())
        return min(splits for splits, share in busy.items() if share >= _NEARLY_BEST * best)
