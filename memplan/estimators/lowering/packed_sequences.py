"""Packed sequences, whose kernels read lengths that fake tensors do not hold.

Reimplements ``aten/src/ATen/native/PackedSequence.cpp`` of torch 2.13 with known lengths; unknown ones end a fake
trace.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException

from memplan.estimators.fake_tensors.known_values import known_integers, known_vector

if TYPE_CHECKING:
    from collections.abc import Iterator

_PACK = torch.ops.aten._pack_padded_sequence.default  # noqa: SLF001 - an operator


def pack(padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Replace ``_pack_padded_sequence``.

    Raises:
        DynamicOutputShapeException: the lengths are unknown.
    """
    longest_first = known_integers(lengths)
    if longest_first is None:
        raise DynamicOutputShapeException(_PACK)
    counts = [sum(length > step for length in longest_first) for step in range(longest_first[0])]
    data: torch.Tensor = _Packing.apply(padded, counts, batch_first)  # type: ignore[no-untyped-call]  # untyped in torch
    return data, known_vector(counts, like=padded)


def pad(
    data: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, padding_value: float, total_length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Replace ``_pad_packed_sequence``.

    Raises:
        DynamicOutputShapeException: the batch sizes are unknown.
    """
    counts = known_integers(batch_sizes)
    if counts is None:
        raise DynamicOutputShapeException(_PACK)
    padded = data.new_full((max(total_length, len(counts)), counts[0], *data.shape[1:]), padding_value)
    for begin, end, count, packed in _runs(counts, data):
        padded[begin:end, :count].copy_(packed)
    lengths = [sum(count > sample for count in counts) for sample in range(counts[0])]
    return padded.transpose(0, 1) if batch_first else padded, known_vector(lengths, like=data)


class _Packing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, padded: torch.Tensor, counts: list[int], batch_first: bool) -> torch.Tensor:
        ctx.counts, ctx.batch_first, ctx.shape = counts, batch_first, padded.shape
        by_step = padded.transpose(0, 1) if batch_first else padded
        return torch.cat([
            by_step[begin:end, :count].contiguous().flatten(0, 1) for begin, end, count in _spans(counts)
        ])  # fmt: skip

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        samples, steps = ctx.shape[:2] if ctx.batch_first else reversed(ctx.shape[:2])
        padded = gradient.new_zeros(steps, samples, *ctx.shape[2:])
        for begin, end, count, packed in _runs(ctx.counts, gradient):
            padded[begin:end, :count].copy_(packed)
        return padded.transpose(0, 1) if ctx.batch_first else padded, None, None


def _spans(counts: list[int]) -> Iterator[tuple[int, int, int]]:
    """Yield first step, step after the last and number of sequences, for each run of steps with equally many."""
    begin = 0
    for count, steps in groupby(counts):
        end = begin + len(list(steps))
        yield begin, end, count
        begin = end


def _runs(counts: list[int], data: torch.Tensor) -> Iterator[tuple[int, int, int, torch.Tensor]]:
    """Yield each span with its part of the packed data, shaped (steps, sequences, ...)."""
    offset = 0
    for begin, end, count in _spans(counts):
        size = (end - begin) * count
        yield begin, end, count, data[offset : offset + size].view(end - begin, count, *data.shape[1:])
        offset += size
