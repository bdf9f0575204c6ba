"""Models travel by shape: what their weights hold stays where it is."""

from __future__ import annotations

import pickle

import cloudpickle
import torch
from torch import nn

from memplan.integrations.parcels import Parcel


def sent(value: object) -> Parcel:
    return pickle.loads(cloudpickle.dumps(Parcel(value)))


def test_a_model_travels_without_the_values_of_its_weights() -> None:
    model = nn.Linear(512, 512)  # 1 MiB
    assert len(cloudpickle.dumps(Parcel(model))) < 10_000
    arrived = sent(model).opened()
    assert arrived.weight.shape == (512, 512)
    assert not torch.equal(arrived.weight, model.weight)


def test_weights_arrive_as_noise_of_their_own_spread() -> None:
    model = nn.Linear(512, 512)
    nn.init.normal_(model.weight, std=0.25)
    assert abs(float(sent(model).opened().weight.detach().std()) - 0.25) < 0.01


def test_constants_and_buffers_arrive_as_they_are() -> None:
    norm = nn.BatchNorm1d(64)
    norm.running_mean.copy_(torch.arange(64))
    arrived = sent(norm).opened()
    assert torch.equal(arrived.weight, torch.ones(64))
    assert torch.equal(arrived.bias, torch.zeros(64))
    assert torch.equal(arrived.running_mean, torch.arange(64.0))


def test_tied_frozen_and_marked_parameters_stay_so() -> None:
    model = nn.Sequential(nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False))
    model[1].weight = model[0].weight
    model[0].weight.requires_grad_(False)
    model[0].weight.no_weight_decay = True
    arrived = sent(model).opened()
    assert arrived[0].weight is arrived[1].weight
    assert not arrived[0].weight.requires_grad
    assert arrived[0].weight.no_weight_decay


def test_every_opening_makes_a_new_copy_and_sending_draws_no_random_numbers() -> None:
    model = nn.Linear(64, 64)
    before = torch.get_rng_state()
    parcel = sent(model)
    assert torch.equal(before, torch.get_rng_state())
    assert parcel.opened().weight is not parcel.opened().weight


def test_a_parcel_can_be_sent_on() -> None:
    parcel = pickle.loads(cloudpickle.dumps(sent(nn.Linear(8, 4))))
    assert parcel.opened().weight.shape == (4, 8)
