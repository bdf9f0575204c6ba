"""Models as their factory leaves them, and what a trace needs of them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import nn

from memplan.estimators.recorder.workload_build import built_model, made_batches
from memplan.probe.training_loop import build_training
from memplan.recipe import Recipe
from memplan.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable


class Tied(nn.Module):
    """One weight of 2 x 2 in two places, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.second = nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight
        self.first.weight.is_shared = True
        self.register_buffer("scale", torch.ones(2), persistent=False)


def on_meta_device() -> nn.Module:
    with torch.device("meta"):
        return Tied()


def built_from(factory: Callable[[], nn.Module]) -> nn.Module:
    workload = Workload(
        model=factory, batch=lambda size: torch.zeros(size, 2), loss=lambda *_: None, optimizer=torch.optim.SGD
    )
    return built_model(workload, Recipe(micro_batch_size=1), {})


def test_parameters_and_buffers_of_the_meta_device_get_storages() -> None:
    model = built_from(on_meta_device)
    assert {str(each.device) for each in (*model.parameters(), *model.buffers())} == {"cpu"}
    assert list(model.state_dict()) == ["first.weight", "second.weight"]  # the buffer is still none of it


def test_tied_parameters_of_the_meta_device_stay_tied_and_keep_what_is_set_on_them() -> None:
    model = built_from(on_meta_device)
    assert model.second.weight is model.first.weight
    assert model.first.weight.is_shared


def test_parameters_with_values_are_left_alone() -> None:
    tied = Tied()
    weight = tied.first.weight
    assert built_from(lambda: tied).first.weight is weight


def drawn_workload() -> Workload:
    """One of which each generator decides a part."""

    def drawn_model() -> nn.Module:
        return nn.Linear(1 + random.getrandbits(9), int(np.random.randint(1, 1000)))

    def drawn_batch(size: int) -> torch.Tensor:
        return torch.tensor([random.gauss(), np.random.rand(), torch.rand(()), *range(size)])

    return Workload(model=drawn_model, batch=drawn_batch, loss=lambda *_: None, optimizer=torch.optim.SGD)


@pytest.mark.parametrize("drawn_before", [0, 1])
def test_models_and_batches_that_are_drawn_are_those_of_a_trial(drawn_before: int) -> None:
    for draw in (random.gauss, np.random.rand, lambda: torch.rand(())):
        _ = [draw() for _ in range(drawn_before)]
    workload, recipe = drawn_workload(), Recipe(micro_batch_size=2)
    batches = made_batches(workload, (1, 2))
    model = built_model(workload, recipe, batches)
    state = build_training(workload, recipe, torch.device("cpu"), 0)
    assert batches[2].tolist() == state.batch.tolist()
    assert batches[1].tolist() == state.batch.tolist()[:-1]
    assert repr(model) == repr(state.model)
