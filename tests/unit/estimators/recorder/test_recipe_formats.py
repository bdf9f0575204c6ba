"""Number formats and memory layouts of models and batches."""

from __future__ import annotations

import torch
from torch import nn

from memplan.estimators.recorder.recipe_formats import convert_in_place, moved_batch


def test_a_batch_that_stays_on_the_host_still_wants_its_gradients_and_keeps_them_from_the_next_step() -> None:
    batch = torch.ones(2, 3, requires_grad=True)
    moved = moved_batch(batch, dtype=None, copy_all=False)
    moved.sum().backward()
    assert moved.grad is not None
    assert batch.grad is None


def test_weights_of_one_pixel_are_laid_out_channels_last_as_modules_do() -> None:
    model = nn.Conv2d(16, 8, 1)
    convert_in_place(model, dtype=None, channels_last=True)
    by_torch = nn.Conv2d(16, 8, 1).to(memory_format=torch.channels_last)
    assert model.weight.stride() == by_torch.weight.stride() == (16, 1, 16, 16)


def test_only_weights_are_converted_where_buffers_stay_as_they_are() -> None:
    model = nn.BatchNorm1d(4)
    convert_in_place(model, dtype=torch.bfloat16, channels_last=False, weights_only=True)
    assert model.weight.dtype is torch.bfloat16
    assert model.running_mean is not None
    assert model.running_mean.dtype is torch.float32
