"""Recurrent layers as cuDNN runs them: one kernel for all steps, and a reserve that the backward pass needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One kind of recurrent cell.

    Args:
        states: tensors that go from step to step: 2 for LSTM, 1 for the others.
        kept: vectors of the hidden size that the backward pass needs from each step: activated gates, the output, and
            the cell state of an LSTM or the recurrent part of a GRU's candidate. cuDNN tells the true size of its
            reserve only on a card; paddings are not counted.
    """

    states: int
    kept: int


CELLS = {
    "lstm.input": Cell(states=2, kept=6),
    "gru.input": Cell(states=1, kept=5),
    "rnn_tanh.input": Cell(states=1, kept=1),
    "rnn_relu.input": Cell(states=1, kept=1),
}


def recurrence(cell: Cell) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return a stand-in for the recurrent operator of this cell, with the operator's own signature."""

    def run(  # noqa: PLR0917 - the operator's own signature
        sequence: torch.Tensor,
        states: torch.Tensor | list[torch.Tensor],
        weights: list[torch.Tensor],
        has_biases: bool,  # noqa: ARG001
        layers: int,
        dropout: float,  # noqa: ARG001
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[torch.Tensor, ...]:
        first = [states] if isinstance(states, torch.Tensor) else list(states)
        vectors = cell.kept * layers * (2 if bidirectional else 1) if train else 0
        if batch_first:
            sequence = sequence.transpose(0, 1)
        made = _Recurrence.apply(vectors, bidirectional, sequence, len(first), *first, *weights)  # type: ignore[no-untyped-call]  # untyped in torch
        output, *last = made
        return (output.transpose(0, 1) if batch_first else output, *last)

    return run


class _Recurrence(torch.autograd.Function):
    """Allocates what ``_cudnn_rnn`` and its backward allocate (``aten/src/ATen/native/cudnn/RNN.cpp``)."""

    @staticmethod
    def forward(
        ctx: Any, vectors: int, bidirectional: bool, sequence: torch.Tensor, count: int, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        states = tensors[:count]
        steps, batch = sequence.shape[:2]
        directions = 2 if bidirectional else 1
        output = sequence.new_empty(steps, batch, directions * states[0].shape[-1])
        reserve = sequence.new_empty(vectors * steps * batch * states[-1].shape[-1])
        ctx.count = count
        ctx.save_for_backward(sequence, output, reserve, *tensors)
        return (output, *(torch.empty_like(state) for state in states))

    @staticmethod
    def backward(ctx: Any, *_slopes: torch.Tensor | None) -> tuple[Any, ...]:
        sequence, _output, _reserve, *tensors = ctx.saved_tensors
        states, weights = tensors[: ctx.count], tensors[ctx.count :]
        of_sequence = torch.empty_like(sequence) if ctx.needs_input_grad[2] else None
        of_states = [
            torch.empty_like(state) if needed else None
            for state, needed in zip(states, ctx.needs_input_grad[4:], strict=False)
        ]
        flat = sequence.new_empty(sum(weight.numel() for weight in weights))  # one buffer for all gradients of weights
        parts = flat.split([weight.numel() for weight in weights])
        of_weights = [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]
        return None, None, of_sequence, None, *of_states, *of_weights
