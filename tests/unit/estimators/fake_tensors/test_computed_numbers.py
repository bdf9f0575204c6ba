"""Numbers read from computed tensors: which uses of them are open, and which end the trace."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor

from memplan.estimators.fake_tensors.computed_numbers import ComputedNumber, reading_computed_numbers
from memplan.estimators.fake_tensors.fake_mode import TraceFakeMode

if TYPE_CHECKING:
    from collections.abc import Callable


def number(value: float = 1.0, *, holds: bool | None = True) -> ComputedNumber:
    return ComputedNumber(value, lambda: holds)


@pytest.mark.parametrize("holds", [True, False])
def test_comparisons_of_it_and_of_what_is_computed_with_it_are_decided(*, holds: bool) -> None:
    found = number(2.0, holds=holds)
    for each in (found, found + 1, 3 - found, -found, abs(found), found**2, 2 / found, round(found, 2)):
        for compare in (operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge):
            assert compare(each, 0.5) is holds
        assert bool(each) is holds
    assert f"{found:.1f} {found + 1:.1f}" == "2.0 3.0"
    assert len({found, number(2.0)}) >= 1


def test_a_comparison_that_nothing_decides_ends_the_trace() -> None:
    with pytest.raises(DataDependentOutputException):
        assert number(holds=None) > 2


@pytest.mark.parametrize("made_whole", [int, round, math.ceil, math.floor, math.trunc, range, operator.index])
def test_it_is_no_size(made_whole: Callable[[float], int]) -> None:
    with pytest.raises(DataDependentOutputException):
        made_whole(number())


def test_pytorch_takes_it_for_no_size_either_and_says_what_it_is() -> None:
    with pytest.raises(TypeError, match="ComputedNumber"):
        torch.zeros(number())  # type: ignore[arg-type]  # what is tested
    with pytest.raises(DataDependentOutputException):
        torch.zeros(3)[: number()]  # type: ignore[misc]  # likewise


def test_it_is_written_as_a_whole_number_where_that_is_asked_for() -> None:
    assert f"{number(3.0):d} of {number(4.0):>3d}" == "3 of   4"


def test_tensors_take_it_as_a_number() -> None:
    assert (torch.ones(2) * number(3.0)).tolist() == [3.0, 3.0]
    assert (number(3.0) - torch.ones(2)).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("arange", ["torch.arange(count)", "torch.arange(0, end=count)", "np.arange(count)"])
def test_nothing_ranges_up_to_it(arange: str) -> None:
    fakes, numpy_made, torch_made = TraceFakeMode(), np.arange, torch.arange
    with fakes, reading_computed_numbers(number):
        count = torch.empty(1, dtype=torch.long).max().item()
        with pytest.raises(DataDependentOutputException):
            eval(arange)  # noqa: S307 - one of three
        assert torch.arange(3).shape == np.arange(3).shape
    assert count == 1.0
    assert (np.arange, torch.arange) == (numpy_made, torch_made)


def test_it_is_read_from_unknown_numbers_alone() -> None:
    fakes = TraceFakeMode()
    with fakes, reading_computed_numbers(number):
        unknown = torch.empty(1).sum()
        assert isinstance(unknown.item(), ComputedNumber)
        assert float(unknown) == 1.0
        for read in (int, math.ceil, math.floor):
            with pytest.raises(DataDependentOutputException):
                read(unknown)
        count = torch.empty(1, dtype=torch.long).sum().item()
        assert isinstance(count, ComputedNumber)
        assert max(count, 1.0) == 1.0
        for unread in (torch.empty(1) > 0, torch.empty(1, dtype=torch.complex64)):
            with pytest.raises(DataDependentOutputException):
                unread.item()
    assert "item" not in vars(FakeTensor)
    with fakes, reading_computed_numbers(lambda: None), pytest.raises(DataDependentOutputException):
        unknown.item()
