"""A module holds other parameters while its optimizer is made."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from memplan.integrations.borrowed_parameters import borrowed_parameters, borrowed_tensors


def test_an_optimizer_made_from_the_module_gets_the_given_parameters_in_its_groups() -> None:
    model, other = (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False)) for _ in range(2))
    with borrowed_parameters(model, other.parameters()):
        optimizer = torch.optim.SGD([{"params": model[1].parameters(), "lr": 1.0}, {"params": model[0].bias}], lr=0.1)
    assert optimizer.param_groups[0]["params"][0] is other[1].weight
    assert optimizer.param_groups[1]["params"][0] is other[0].bias


def test_the_module_has_its_own_back_afterwards_whatever_happens() -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    own = list(model.parameters())
    with pytest.raises(RuntimeError), borrowed_parameters(model, other.parameters()):
        raise RuntimeError
    assert all(mine is before for mine, before in zip(model.parameters(), own, strict=True))


def test_tied_parameters_stay_tied() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    given = nn.Parameter(torch.zeros(2, 2))
    with borrowed_parameters(model, [given]):
        assert model[0].weight is given
        assert model[1].weight is given


def test_a_module_computes_with_the_tensors_of_its_copy_and_has_its_own_back() -> None:
    model = nn.BatchNorm1d(2)
    copied = copy.deepcopy(model).to("meta")
    with borrowed_tensors(model, copied):
        assert model(torch.ones(3, 2, device="meta")).device.type == "meta"
    assert {each.device.type for each in (*model.parameters(), *model.buffers())} == {"cpu"}
