"""Which storages count as held by the process, among whatever else Python objects are."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import nn

from memplan.probe.known_blocks import set_objects_aside, visible_storages


class ComparedByName(type):
    """A metaclass whose classes have no hash."""

    def __eq__(cls, other: object) -> bool:
        return cls.__name__ == getattr(other, "__name__", None)

    __hash__ = None  # type: ignore[assignment]  # as Python does where there is an __eq__ alone


class Proxy(metaclass=ComparedByName):
    """Stands for an object that is made when something asks what it is."""

    asked: list[str]

    def __init__(self) -> None:
        self.asked = []

    @property  # type: ignore[misc]  # as lazy proxies have it
    def __class__(self) -> Any:
        self.asked.append("__class__")
        return torch.Tensor


def test_objects_of_user_code_are_not_asked_what_they_are() -> None:
    proxy, held = Proxy(), torch.ones(512)
    assert visible_storages("cpu")[held.data_ptr()] == 2048
    assert proxy.asked == []


class Guarded(nn.Parameter):
    """A weight of the user's, whose own code refuses everything."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


def test_weights_of_a_users_own_type_are_held_and_lazy_ones_not_yet() -> None:
    weight, lazy = Guarded(torch.ones(512)), nn.LazyLinear(4)
    with torch._C.DisableTorchFunctionSubclass():
        address = weight.untyped_storage().data_ptr()
    assert visible_storages("cpu")[address] == 2048
    assert nn.parameter.is_lazy(lazy.weight)


def test_tensors_from_before_objects_are_set_aside_stay_in_sight_as_long_as_they_live() -> None:
    proxy, kept, dropped = Proxy(), torch.ones(512), torch.ones(256)
    addresses = [each.data_ptr() for each in (kept, dropped)]
    set_objects_aside()
    frozen = gc.get_freeze_count()
    later = torch.ones(128)
    held = visible_storages("cpu")
    assert [held[address] for address in (*addresses, later.data_ptr())] == [2048, 1024, 512]
    del dropped
    assert visible_storages("cpu").keys() >= {kept.data_ptr(), later.data_ptr()}
    assert addresses[1] not in visible_storages("cpu")
    assert frozen > 10_000, "what torch and the tests have imported is not searched"
    assert proxy.asked == []
