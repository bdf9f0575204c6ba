"""Functions of compiled extensions that are given fake tensors."""

from __future__ import annotations

import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from types import ModuleType
from typing import Any

import pytest
import torch

from memplan.estimators.absent_card.compiled_extensions import absent_extension_kernels, runs_followed_operators
from memplan.estimators.fake_tensors.fake_mode import TraceFakeMode
from memplan.estimators.fake_tensors.known_values import is_known, remember_value

NAME = "some_kernels"


def writes(*_: Any) -> str:
    """writes(x: torch.Tensor, out: torch.Tensor) -> None"""
    return "ran"


def returns(*_: Any) -> str:
    """returns(x: torch.Tensor) -> list[torch.Tensor]"""
    return "ran"


def either(*_: Any) -> str:
    """either(*args, **kwargs)
    Overloaded function.

    1. either(x: torch.Tensor) -> None

    2. either(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor
    """
    return "ran"


def version(*_: Any) -> str:
    """version() -> str"""
    return "ran"


@pytest.fixture
def extension(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType(NAME)
    made.__spec__ = ModuleSpec(NAME, ExtensionFileLoader(NAME, "some_kernels.so"))
    for each in (writes, returns, either, version):
        setattr(made, each.__name__, each)
    monkeypatch.setitem(sys.modules, NAME, made)
    return made


def test_what_only_writes_is_left_out_and_told(extension: ModuleType) -> None:
    told: list[str] = []
    with TraceFakeMode(), absent_extension_kernels(told.append):
        assert extension.writes(torch.empty(2), torch.empty(2)) is None
        assert extension.version(torch.empty(2)) == "ran"  # takes no tensors, as far as it says
    assert told == ["some_kernels.writes"]
    assert extension.writes is writes


def test_what_is_written_is_not_known_afterwards(extension: ModuleType) -> None:
    fakes = TraceFakeMode()
    with fakes, absent_extension_kernels(lambda _: None):
        out = torch.empty(2)
        remember_value(out, torch.zeros(2))
        extension.writes(torch.empty(2), out)
        assert not is_known(out)


def test_real_tensors_are_computed(extension: ModuleType) -> None:
    with absent_extension_kernels(pytest.fail):
        assert extension.writes(torch.empty(2), torch.empty(2)) == "ran"


@pytest.mark.parametrize("name", ["returns", "either"])
def test_what_may_return_something_refuses_fakes(extension: ModuleType, name: str) -> None:
    refused = pytest.raises(NotImplementedError, match=f"some_kernels.{name} of a compiled extension")
    with TraceFakeMode(), absent_extension_kernels(pytest.fail), refused:
        getattr(extension, name)(torch.empty(2))


def test_other_modules_that_have_taken_a_function_use_the_stand_in(
    extension: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    importing = ModuleType("importing")
    importing.scale = extension.writes  # type: ignore[attr-defined]  # as `from some_kernels import writes as scale`
    monkeypatch.setitem(sys.modules, "importing", importing)
    with TraceFakeMode(), absent_extension_kernels(lambda _: None):
        assert importing.scale(torch.empty(2), torch.empty(2)) is None
    assert importing.scale is writes


@pytest.fixture
def mmcv_operators(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType("mmcv._ext")
    made.ms_deform_attn_forward = writes  # type: ignore[attr-defined]
    using = ModuleType("mmcv.ops.multi_scale_deform_attn")
    using.IS_CUDA_AVAILABLE = False  # type: ignore[attr-defined]
    for each in (made, using):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    return made


def test_operators_of_mmcv_follow_their_rules_and_keep_what_is_known_of_sizes(mmcv_operators: ModuleType) -> None:
    using = sys.modules["mmcv.ops.multi_scale_deform_attn"]
    with TraceFakeMode(), absent_extension_kernels(pytest.fail):
        sizes = torch.empty(1, 2, dtype=torch.long)
        remember_value(sizes, torch.tensor([[2, 3]]))
        value, locations = torch.empty(4, 6, 8, 32), torch.empty(4, 100, 8, 1, 4, 2)
        found = mmcv_operators.ms_deform_attn_forward(value, sizes, sizes, locations, value, im2col_step=64)
        assert (found.shape, is_known(sizes)) == ((4, 100, 256), True)
        assert using.IS_CUDA_AVAILABLE
    assert not using.IS_CUDA_AVAILABLE


def test_packages_see_a_card_where_the_operators_are_loaded_that_they_run_there(mmcv_operators: ModuleType) -> None:
    assert runs_followed_operators("mmdet")
    assert not runs_followed_operators("transformers")
    del sys.modules[mmcv_operators.__name__]
    assert not runs_followed_operators("mmdet")
