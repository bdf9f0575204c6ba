"""Addresses of fake tensors, by which the first FSDP tells storages apart."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from memplan.estimators.fake_tensors.storage_addresses import addressed_storages


def test_tensors_that_share_a_storage_share_its_address_and_others_do_not() -> None:
    with FakeTensorMode():
        first, second = torch.zeros(8), torch.zeros(8)
    with addressed_storages():
        addresses = [each.untyped_storage().data_ptr() for each in (first, first[2:], second)]
        assert addresses[0] == addresses[1] != addresses[2]
        assert first[2:].data_ptr() == first.data_ptr() + 8  # two numbers of 4 bytes


def test_a_storage_that_is_freed_has_no_address() -> None:
    with FakeTensorMode():
        tensor = torch.zeros(8)
    with addressed_storages():
        assert tensor.untyped_storage().data_ptr() > 0
        tensor.untyped_storage().resize_(0)
        assert (tensor.untyped_storage().data_ptr(), tensor.data_ptr()) == (0, 0)
