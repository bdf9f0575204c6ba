"""The exponential moving average (EMA) of a model's parameters and buffers, which many trainers keep beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import nn

_DECAY = 0.999


def make_moving_average(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the average after no step: a copy of the model's state."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


@torch.no_grad()
def update_moving_average(average: dict[str, torch.Tensor], model: nn.Module) -> None:
    """Move the average towards the model's state; integers, such as counters, are copied."""
    for name, value in model.state_dict().items():
        kept = average[name]
        if kept.is_floating_point():
            kept.lerp_(value.to(kept.dtype), 1 - _DECAY)
        else:
            kept.copy_(value)
