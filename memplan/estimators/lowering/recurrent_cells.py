"""Cells of recurrent nets on CUDA: one kernel after the two products, which keeps both for higher derivatives.

Sources: ``LSTMCell`` and ``GRUCell`` in ``aten/src/ATen/native/RNN.cpp``, ``cuda/RNN.cu``, and
``tools/autograd/derivatives.yaml`` of torch 2.13. On the CPU they are composed of single steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

_KEPT_OF_LSTM, _KEPT_OF_GRU = 4, 5  # vectors of the hidden size in the workspace


def lstm_cell(  # noqa: PLR0917 - the operator's own signature
    values: torch.Tensor,
    states: list[torch.Tensor],
    of_values: torch.Tensor,
    of_state: torch.Tensor,
    first_bias: torch.Tensor | None = None,
    second_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the next hidden and cell state."""
    gates = functional.linear(values, of_values), functional.linear(states[0], of_state)
    made: tuple[torch.Tensor, torch.Tensor] = _LstmCell.apply(*gates, states[1], first_bias, second_bias)  # type: ignore[no-untyped-call]  # untyped in torch
    return made


def gru_cell(  # noqa: PLR0917 - the operator's own signature
    values: torch.Tensor,
    state: torch.Tensor,
    of_values: torch.Tensor,
    of_state: torch.Tensor,
    first_bias: torch.Tensor | None = None,
    second_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the next hidden state."""
    gates = functional.linear(values, of_values), functional.linear(state, of_state)
    made: torch.Tensor = _GruCell.apply(*gates, state, first_bias, second_bias)  # type: ignore[no-untyped-call]  # untyped in torch
    return made


class _LstmCell(torch.autograd.Function):
    """Allocates what ``_thnn_fused_lstm_cell`` and its backward allocate."""

    @staticmethod
    def forward(
        ctx: Any, of_values: torch.Tensor, of_state: torch.Tensor, cell: torch.Tensor, *biases: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        workspace = cell.new_empty(len(cell), _KEPT_OF_LSTM * cell.shape[1])
        hidden, next_cell = torch.empty_like(cell), torch.empty_like(cell)
        ctx.save_for_backward(of_values, of_state, cell, next_cell, workspace)
        ctx.has_biases = biases[0] is not None
        return hidden, next_cell

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        of_values, _, cell, *_ = ctx.saved_tensors
        of_gates, of_cell = torch.empty_like(of_values), torch.empty_like(cell)
        of_bias = of_gates.sum(0) if ctx.has_biases else None
        return of_gates, of_gates, of_cell, of_bias, of_bias


class _GruCell(torch.autograd.Function):
    """Allocates what ``_thnn_fused_gru_cell`` and its backward allocate."""

    @staticmethod
    def forward(
        ctx: Any, of_values: torch.Tensor, of_state: torch.Tensor, state: torch.Tensor, *biases: torch.Tensor | None
    ) -> torch.Tensor:
        workspace = state.new_empty(len(state), _KEPT_OF_GRU * state.shape[1])
        hidden = torch.empty_like(state)
        ctx.save_for_backward(of_values, of_state, state, workspace)
        ctx.has_biases = biases[0] is not None
        return hidden

    @staticmethod
    def backward(ctx: Any, _gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        of_values, of_state, state, _ = ctx.saved_tensors
        gradients = [torch.empty_like(each) for each in (of_values, of_state, state)]
        of_biases = [each.sum(0) if ctx.has_biases else None for each in gradients[:2]]
        return (*gradients, *of_biases)
