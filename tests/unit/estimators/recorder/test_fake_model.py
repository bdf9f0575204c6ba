"""Copies of models on fake tensors."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any, Self

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from memplan.estimators.fake_tensors.fake_mode import TraceFakeMode
from memplan.estimators.fake_tensors.known_values import is_known, known_value
from memplan.estimators.recorder.fake_model import (
    attributes_left_on_host,
    auxiliary_tensors,
    fake_copy,
    remember_attributes,
    remember_buffers,
)
from memplan.training.skipped_initialisation import LARGE_ELEMENTS


class Packed(nn.Parameter):
    """A quantized weight, made and copied as bitsandbytes does it: the scales lie beside the data."""

    state: Any

    def __new__(cls, data: torch.Tensor, scales: torch.Tensor) -> Self:
        made = torch.Tensor._make_subclass(cls, data, False)
        made.state = SimpleNamespace(scales=scales, nested=SimpleNamespace(scales=scales[:1].clone()), blocks=64)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = type(self).__new__(type(self), torch.empty(0), self.state.scales)
        made.state = copy.deepcopy(self.state, memo)
        made.data = copy.deepcopy(self.data, memo)
        return made


def packed_model() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    packed = Packed(torch.zeros(8, dtype=torch.uint8), torch.zeros(2))
    model[0].weight = model[1].weight = packed
    return model


def test_a_copy_holds_fakes_of_the_same_sizes_and_tied_tensors_stay_tied() -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.Linear(4, 2))
    model[1].weight = model[0].weight
    copied = fake_copy(model, TraceFakeMode())
    assert copied[1].weight is copied[0].weight
    assert all(isinstance(each, FakeTensor) for each in copied.parameters())
    assert [tuple(each.shape) for each in copied.parameters()] == [(2, 4), (2,), (2,)]
    assert auxiliary_tensors(copied[0].weight) == []


@pytest.mark.parametrize("shares_storages", [True, False])
def test_parameters_tied_by_their_data_stay_tied_where_no_move_to_a_card_parts_them(shares_storages: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight.data = model[0].weight.data
    copied = fake_copy(model, TraceFakeMode(), shares_storages=shares_storages)
    assert len({id(each) for each in copied.parameters()}) == 4
    assert len({id(each.untyped_storage()) for each in copied.parameters()}) == (3 if shares_storages else 4)
    assert all(each.requires_grad and each.is_leaf for each in copied.parameters())


def test_a_parameter_of_a_class_of_its_own_keeps_what_it_carries() -> None:
    copied = fake_copy(packed_model(), TraceFakeMode())
    weight = copied[0].weight
    assert copied[1].weight is weight
    assert isinstance(weight, FakeTensor)
    assert (weight.device.type, weight.dtype, weight.requires_grad) == ("cpu", torch.uint8, False)
    assert weight.state.blocks == 64
    assert [tuple(each.shape) for each in auxiliary_tensors(weight)] == [(2,), (1,)]
    assert auxiliary_tensors(weight)[0] is weight.state.scales
    assert all(isinstance(each, FakeTensor) for each in auxiliary_tensors(weight))


class Averaging(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("seen", torch.zeros(2, dtype=torch.long))
        self.register_buffer("last", self.seen[1:])
        self.register_buffer("unfilled", torch.empty(LARGE_ELEMENTS, dtype=torch.long))


class Moved(nn.Identity):
    """Moves its table with itself."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.zeros(4)

    def _apply(self, *args: Any, **kwargs: Any) -> Moved:
        super()._apply(*args, **kwargs)
        self.table = args[0](self.table)
        return self


def test_a_move_to_a_card_leaves_tensors_in_plain_attributes_that_are_registered_nowhere() -> None:
    model = nn.Sequential(nn.Linear(4, 2), Moved())
    model[0].tables = {"sizes": [torch.zeros(4)], "name": "sizes"}
    model[0].same = [model[0].weight, model[0].weight.detach()]
    copied = fake_copy(model, TraceFakeMode())
    ((left, original),) = attributes_left_on_host(copied, model)
    assert left is copied[0].tables["sizes"][0]
    assert original is model[0].tables["sizes"][0]


def test_whole_numbers_in_small_buffers_are_known() -> None:
    real, fakes = Averaging(), TraceFakeMode()
    fake = fake_copy(real, fakes)
    remember_buffers(fake, real)
    assert known_value(fake.count) == 3
    assert not is_known(fake.mean)
    assert not is_known(fake.unfilled)
    known_value(fake.seen).add_(5)
    assert known_value(fake.last) == 5


def test_tensors_in_plain_attributes_are_known_however_they_are_held() -> None:
    class Anchors:
        def __init__(self) -> None:
            self.levels = [torch.tensor([1.0]), torch.tensor([2.0])]
            self.owner = self

    real = nn.Module()
    real.strides = torch.tensor([8, 16])
    real.by_name = {"a": (torch.tensor(3.0), "text")}
    real.anchors = Anchors()
    real.other = nn.ParameterList([torch.zeros(2)])
    fake = fake_copy(real, TraceFakeMode())
    remember_attributes(fake, real)
    held = [fake.strides, fake.by_name["a"][0], *fake.anchors.levels]
    assert [known_value(each).tolist() for each in held] == [[8, 16], 3.0, [1.0], [2.0]]
    assert not any(is_known(each) for each in fake.parameters())
