"""Recurrent layers of cuDNN: one kernel for all steps, and a reserve space for the backward pass."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

# Vectors of the hidden size that each step saves for the backward pass: activated gates, the output, and the cell state
# of an LSTM or the recurrent part of a GRU's candidate. The padding of cuDNN's reserve space, which it returns only on
# a card, is not counted.
_KEPT_VECTORS = {"lstm": 6, "gru": 5, "rnn_tanh": 1, "rnn_relu": 1}


def recurrences() -> dict[str, Callable[..., tuple[torch.Tensor, ...]]]:
    """Return replacements for all recurrent operators, on padded and on packed sequences."""
    kinds: tuple[tuple[str, Callable[..., Any]], ...] = (("input", _recurrence), ("data", _packed_recurrence))
    return {f"{name}.{kind}": partial(run, kept) for name, kept in _KEPT_VECTORS.items() for kind, run in kinds}


def _recurrence(  # noqa: PLR0917 - the operator's own signature
    kept: int,
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
    if batch_first:
        sequence = sequence.transpose(0, 1)
    vectors = kept * sequence.shape[:2].numel() * layers if train else 0
    output, *last = _run(sequence, states, weights, vectors, bidirectional=bidirectional)
    return (output.transpose(0, 1) if batch_first else output, *last)


def _packed_recurrence(  # noqa: PLR0917 - the operator's own signature
    kept: int,
    data: torch.Tensor,
    batch_sizes: torch.Tensor,
    states: torch.Tensor | list[torch.Tensor],
    weights: list[torch.Tensor],
    has_biases: bool,  # noqa: ARG001
    layers: int,
    dropout: float,  # noqa: ARG001
    train: bool,
    bidirectional: bool,
) -> tuple[torch.Tensor, ...]:
    """Reserve as much as for padded sequences.

    ``cudnnGetRNNTempSpaceSizes`` reads only the number of sequences and the largest length.
    """
    first = states if isinstance(states, torch.Tensor) else states[0]
    vectors = kept * len(batch_sizes) * first.shape[1] * layers if train else 0
    return _run(data, states, weights, vectors, bidirectional=bidirectional)


def _run(
    sequence: torch.Tensor,
    states: torch.Tensor | list[torch.Tensor],
    weights: list[torch.Tensor],
    vectors: int,
    *,
    bidirectional: bool,
) -> tuple[torch.Tensor, ...]:
    first = [states] if isinstance(states, torch.Tensor) else list(states)
    directions = 2 if bidirectional else 1
    made: tuple[torch.Tensor, ...] = _Recurrence.apply(  # type: ignore[no-untyped-call]  # untyped in torch
        directions * vectors, directions, sequence, len(first), *first, *weights
    )
    return made


class _Recurrence(torch.autograd.Function):
    """Allocates what ``_cudnn_rnn`` and its backward allocate (``aten/src/ATen/native/cudnn/RNN.cpp``).

    Each of the three kernels copies batch-first input, as the first of the backward pass does the output's gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, vectors: int, directions: int, sequence: torch.Tensor, count: int, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        states = tensors[:count]
        in_order = sequence.contiguous()
        output = in_order.new_empty(*sequence.shape[:-1], directions * states[0].shape[-1])
        last = [torch.empty_like(state) for state in states]
        reserve = sequence.new_empty(vectors * states[-1].shape[-1])
        ctx.count = count
        ctx.save_for_backward(sequence, output, reserve, *tensors)
        return output, *last

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_of_states: torch.Tensor) -> tuple[Any, ...]:
        sequence, _output, _reserve, *tensors = ctx.saved_tensors
        states, weights = tensors[: ctx.count], tensors[ctx.count :]
        # allocated even if the input needs no gradient, and alive until the weights' gradients are computed
        of_sequence, *of_states = _input_gradients(sequence, gradient, states)
        of_weights = _weight_gradients(sequence, weights)
        return None, None, of_sequence, None, *of_states, *of_weights


def _input_gradients(sequence: torch.Tensor, gradient: torch.Tensor, states: list[torch.Tensor]) -> list[torch.Tensor]:
    copies = [sequence.contiguous(), gradient.contiguous()]
    return [torch.empty_like(each) for each in (copies[0], *states)]


def _weight_gradients(sequence: torch.Tensor, weights: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return views of one buffer."""
    copy = sequence.contiguous()
    sizes = [weight.numel() for weight in weights]
    parts = torch.split(copy.new_empty(sum(sizes)), sizes)
    return [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]
