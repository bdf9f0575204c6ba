"""Evaluation between two training steps."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

from memplan.recipe import Precision
from memplan.training.evaluation import evaluate_batches
from memplan.training.half_precision import autocast


def evaluate(model: nn.Module, function, next_batch=lambda: torch.ones(2, 4), precision=Precision.FP32) -> None:
    evaluate_batches(model, function, next_batch, context=lambda: autocast(precision, "cpu"))


def test_the_model_evaluates_without_gradients_and_then_each_module_is_in_its_own_mode_again() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[1].eval()  # as where its statistics are frozen
    seen = []
    evaluate(model, lambda each, batch: seen.append((each.training, each(batch).requires_grad)))
    assert seen == [(False, False)] * 2
    assert [model.training, model[0].training, model[1].training] == [True, True, False]


def test_the_modes_are_restored_where_evaluation_fails() -> None:
    model = nn.Linear(4, 4)
    with pytest.raises(ZeroDivisionError):
        evaluate(model, lambda each, batch: 1 / 0)
    assert model.training
    assert torch.is_grad_enabled()


def test_the_batch_is_dropped_before_the_next_is_made_and_what_was_returned_is_held() -> None:
    made: list[weakref.ref[torch.Tensor]] = []
    returned: list[weakref.ref[torch.Tensor]] = []
    alive = []

    def next_batch() -> torch.Tensor:
        alive.append([each() is not None for each in made])
        batch = torch.ones(2, 4)
        made.append(weakref.ref(batch))
        return batch

    def function(_: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        alive.append([each() is not None for each in returned])
        result = batch + 1
        returned.append(weakref.ref(result))
        return result

    evaluate(nn.Identity(), function, next_batch)
    assert alive == [[], [], [False], [True]]


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_it_runs_under_the_autocast_of_the_training(precision: str, dtype: torch.dtype) -> None:
    types = set()
    evaluate(nn.Linear(4, 4), lambda each, batch: types.add(each(batch).dtype), precision=Precision(precision))
    assert types == {dtype}
