"""The average that trainers keep beside the model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memplan.training.moving_average import make_moving_average, update_moving_average


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))
        self.register_buffer("steps", torch.tensor(0))


def test_an_average_begins_with_the_model_and_moves_by_a_thousandth() -> None:
    model = Counting()
    average = make_moving_average(model)
    model.load_state_dict({"weight": torch.ones(4), "steps": torch.tensor(7)})
    assert average["weight"].tolist() == [0, 0, 0, 0]
    update_moving_average(average, model)
    assert average["weight"].tolist() == pytest.approx([0.001] * 4)
    assert average["steps"] == 7  # counted, not averaged
