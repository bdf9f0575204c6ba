"""Cells of recurrent nets, which run as one kernel on a card."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from memplan.estimators.lowering.recurrent_cells import gru_cell, lstm_cell


def test_an_lstm_keeps_both_products_and_its_workspace() -> None:
    cell, values, state = nn.LSTMCell(6, 8), torch.rand(4, 6), torch.rand(4, 8)
    made: Any = lstm_cell(values, [state, state], cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)
    assert [each.shape for each in made] == [(4, 8), (4, 8)]
    kept = [each.shape for each in made[0].grad_fn.saved_tensors]
    assert kept == [(4, 32), (4, 32), (4, 8), (4, 8), (4, 32)]
    made[1].sum().backward()
    assert all(each.grad is not None for each in cell.parameters())


def test_a_gated_unit_keeps_five_vectors() -> None:
    cell, values, state = nn.GRUCell(6, 8, bias=False), torch.rand(4, 6), torch.rand(4, 8)
    made: Any = gru_cell(values, state, cell.weight_ih, cell.weight_hh)
    assert made.shape == (4, 8)
    assert made.grad_fn.saved_tensors[-1].shape == (4, 40)
    made.sum().backward()
    assert all(each.grad is not None for each in cell.parameters())
