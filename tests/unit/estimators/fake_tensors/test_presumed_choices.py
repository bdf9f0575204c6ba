"""What is presumed where shapes depend on values that are not known."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensor

from memplan.estimators.fake_tensors.computed_numbers import ComputedNumber
from memplan.estimators.fake_tensors.known_values import known_value
from memplan.estimators.fake_tensors.presumed_choices import PresumedChoices
from memplan.estimators.fake_tensors.random_draws import HIGH, LOW, MIDDLE, RandomDraws
from tests.unit.estimators.fake_tensors.presuming import Presuming

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def presuming() -> Iterator[PresumedChoices]:
    with Presuming.on_fakes() as choices:
        yield choices


def test_of_what_scores_select_all_is_kept(presuming: PresumedChoices) -> None:
    scores = torch.empty(4, 3)
    assert scores[scores > 0.5].shape == (12,)
    assert torch.empty(4, 3, 512)[scores > 0.5].shape == (12, 512)
    assert (scores > 0.5).nonzero().shape == (12, 2)
    assert scores.masked_select(scores > 0.5).shape == (12,)
    assert torch.empty(4, 1).masked_select(torch.empty(1, 3) > 0.5).shape == (12,)
    values, positions = torch.unique(scores.flatten(), return_inverse=True)
    assert (values.shape, positions.shape) == ((12,), (12,))
    assert torch.unique(scores, return_counts=True)[1].shape == (12,)
    assert torch._unique2(scores)[1].numel() == torch._unique2(scores)[2].numel() == 0
    (note,) = presuming.notes
    assert "presuming.py:" in note


def test_what_is_known_of_all_is_known_of_those_that_are_kept(presuming: PresumedChoices) -> None:
    levels = torch.tensor([0, 0, 1, 1])
    kept = torch.where(torch.empty(4) > 0.5)[0]
    assert levels[kept].unique().tolist() == [0, 1]
    assert len(presuming.notes) == 1


def test_what_is_selected_directly_is_known_as_well(presuming: PresumedChoices) -> None:
    levels = torch.tensor([0, 0, 1, 1])
    assert levels[torch.empty(4) > 0.5].unique().tolist() == [0, 1]
    assert len(presuming.notes) == 1


def test_a_mask_keeps_what_is_known_of_it_where_scores_narrow_it_down(presuming: PresumedChoices) -> None:
    inside = torch.tensor([True, False, True, False])
    inside[inside.clone()] = torch.empty(2) > 0.5
    assert torch.empty(4, 3)[inside].shape == (2, 3)
    (note,) = presuming.notes
    assert "taken at its most" in note


@pytest.mark.parametrize("read", [lambda count: count, lambda count: ComputedNumber(1.0, lambda: True)])
def test_the_best_of_a_computed_number_are_all(read: Any, presuming: PresumedChoices) -> None:
    count = read(torch.empty(4).sum().int())
    with presuming.choosing_all_of_computed_numbers():
        assert torch.topk(torch.empty(4, 3), count, dim=0).indices.shape == (4, 3)
        assert torch.empty(4, 3).topk(k=count).values.shape == (4, 3)
        assert torch.topk(input=torch.empty(4, 3), k=count, dim=1).values.shape == (4, 3)
        assert torch.empty(4, 3).topk(2).values.shape == (4, 2)
        assert torch.empty(4, 3).topk(torch.tensor(2)).values.shape == (4, 2)
    assert "topk" not in vars(FakeTensor)


def test_experts_are_chosen_evenly(presuming: PresumedChoices) -> None:
    chosen = torch.empty(6, 4).topk(2).indices
    assert [torch.where(chosen == expert)[0].shape[0] for expert in range(4)] == [3, 3, 3, 3]  # 12 choices among 4
    assert torch.bincount(torch.empty(6, 3).argmax(-1)).tolist() == [2, 2, 2]
    assert "taken to be even" in presuming.notes[0]


@pytest.mark.parametrize(
    ("sort", "choices"),
    [
        (lambda scores: scores.sort(), 4),
        (lambda scores: scores.sort(dim=0), 6),
        (lambda scores: scores.sort(stable=True), 4),
        (lambda scores: scores.sort(stable=True, dim=0), 6),
        (lambda scores: scores.max(dim=0), 6),
    ],
)
def test_no_index_lies_beyond_what_is_chosen_among(sort: Any, choices: int, presuming: PresumedChoices) -> None:
    indices = sort(torch.empty(6, 4)).indices
    assert torch.bincount(indices.flatten()).shape == (min(choices, indices.numel()),)


@pytest.mark.parametrize("check", [torch.all, torch._is_all_true])
def test_a_check_of_all_values_is_passed_and_the_estimate_says_so(check: Any, presuming: PresumedChoices) -> None:
    assert check(torch.empty(4) >= 0)
    (note,) = presuming.notes
    assert "are taken to hold" in note


def test_a_matching_pairs_as_many_as_there_are_whatever_the_costs(presuming: PresumedChoices) -> None:
    with presuming.converting_to_numpy():
        costs = np.asarray(torch.empty(3, 2))
    assert (costs.shape, costs.any()) == ((3, 2), False)
    with pytest.raises(RuntimeError, match="numpy"):
        torch.empty(3, 2).numpy()


def test_an_array_of_a_mask_selects_all_there_is(presuming: PresumedChoices) -> None:
    with presuming.converting_to_numpy():
        assert np.ones(3)[(torch.empty(3) > 0).numpy()].shape == (3,)
    (note,) = presuming.notes
    assert "taken at its most" in note


def test_whole_numbers_that_are_not_known_index_arrays_and_come_back_unknown(presuming: PresumedChoices) -> None:
    with presuming.converting_to_numpy():
        indices = torch.empty(3).to(torch.int32).numpy()
        assert np.ones((2, 5))[indices].shape == (3, 5)
        back = torch.from_numpy(indices)
    assert (back.shape, back.dtype, known_value(back)) == ((3,), torch.int32, None)
    (note,) = presuming.notes
    assert "handed to NumPy" in note


@pytest.mark.parametrize(
    "read",
    [
        lambda counts: counts[0],
        lambda counts: counts.max(),
        lambda counts: counts > 1,
        lambda counts: counts.tolist(),
        np.unique,
        list,
    ],
)
def test_whole_numbers_that_are_not_known_are_not_read(read: Any, presuming: PresumedChoices) -> None:
    with presuming.converting_to_numpy():
        counts = torch.empty(3).to(torch.int64).numpy()
        with pytest.raises(DataDependentOutputException):
            read(counts)
        with pytest.raises(DataDependentOutputException):
            np.asarray(torch.empty(3).to(torch.int64))


def test_what_nothing_bounds_is_refused(presuming: PresumedChoices) -> None:
    with pytest.raises(DynamicOutputShapeException):
        torch.repeat_interleave(torch.empty(3).to(torch.int64))


@pytest.mark.parametrize(("fraction", "holds"), [(LOW, False), (MIDDLE, True), (HIGH, True)])
def test_a_condition_is_decided_by_the_draw_as_often_as_a_module_may_run(fraction: float, *, holds: bool) -> None:
    choices, draws = PresumedChoices(), RandomDraws(fraction)
    assert not draws.were_read
    decided, modules = [], [*16 * ["first", "second"], "first", "third"]
    while modules:  # as a loop that goes on for as long as a condition holds
        decided.append(choices.decide(draws, modules.pop(0)))
    assert decided == [*32 * [holds], None, holds]
    assert draws.were_read
    assert draws.notes == ()  # it is none of the step's own
    assert "tried both ways" in choices.notes[0]


def test_a_loop_that_asks_another_function_whether_to_go_on_is_seen_as_well() -> None:
    choices, draws = PresumedChoices(), RandomDraws(HIGH)
    asked = 0

    def goes_on() -> bool:
        nonlocal asked
        asked += 1
        return bool(choices.decide(draws, "solver"))

    while goes_on():
        pass
    assert asked == 17


def test_conditions_in_a_loop_over_boxes_are_decided_for_each_of_them() -> None:
    choices, draws = PresumedChoices(), RandomDraws(HIGH)

    def decided() -> list[bool | None]:
        return [choices.decide(draws, "head") for _ in range(100)]

    with ThreadPoolExecutor(1) as thread:  # where no loops of the test runner are on the stack
        assert thread.submit(decided).result() == 100 * [True]
