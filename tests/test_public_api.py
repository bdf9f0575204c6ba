"""The public names are what they say they are."""

from __future__ import annotations

import dataclasses
import importlib

import pytest

import memplan


def test_every_public_name_exists_and_the_list_is_sorted() -> None:
    assert memplan.__all__ == sorted(memplan.__all__)
    for name in memplan.__all__:
        assert getattr(memplan, name) is not None


def test_a_public_name_stays_one_when_the_room_of_the_same_name_is_imported() -> None:
    importlib.import_module("memplan.probe")
    assert callable(memplan.probe)
    assert memplan.probe is memplan.probe


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'train'"):
        _ = memplan.train


@pytest.mark.parametrize("value", [memplan.Recipe(micro_batch_size=1)], ids=["Recipe"])
def test_values_are_frozen(value: object) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.micro_batch_size = 2
