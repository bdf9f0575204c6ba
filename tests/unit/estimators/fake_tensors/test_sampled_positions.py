"""How much can be selected by labels and marks that are not known."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ParamSpec

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from tests.unit.estimators.fake_tensors.presuming import Presuming

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")


def presuming(test: Callable[P, None]) -> Callable[P, None]:
    """Run a test on fake tensors."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with Presuming.on_fakes():
            test(*args, **kwargs)

    return run


def computed_labels(count: int = 100) -> torch.Tensor:
    """Labels that are not known: 0 is background, and -1 neither."""
    labels = torch.empty(count).long()
    labels[torch.empty(count) > 0.5] = 0
    return labels


def some_of(positions: torch.Tensor, most: int) -> torch.Tensor:
    return positions[torch.randperm(positions.numel())[:most]]


def marked(labels: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    marks = torch.zeros_like(labels, dtype=torch.uint8)
    marks[positions] = 1
    return marks


def selected(mask: torch.Tensor) -> int:
    return torch.where(mask)[0].numel()


@presuming
def test_no_more_are_marked_than_were_sampled() -> None:
    labels = computed_labels()
    positive, negative = torch.where(labels >= 1)[0], torch.where(labels == 0)[0]
    assert (positive.numel(), negative.numel()) == (100, 100)
    marks = marked(labels, some_of(positive, 5)) | marked(labels, some_of(negative, 15))
    sampled = torch.where(marks)[0]
    assert sampled.numel() == 20
    assert torch.empty(100, 4)[marks.bool()].shape == (20, 4)
    assert selected(labels[sampled] > 0) == 5
    assert selected(labels[sampled] > -1) == 20
    assert selected(labels[sampled] < 0) == 0


@presuming
def test_samples_may_be_put_together_without_marks() -> None:
    labels = computed_labels()
    positive = torch.nonzero((labels != -1) & (labels != 0)).squeeze(1)
    negative = torch.nonzero(labels == 0).squeeze(1)
    sampled = torch.cat([some_of(positive, 5), some_of(negative, 15)])
    found = labels[sampled]
    assert selected((found != 0) & (found != -1)) == 5
    assert selected(found == 0) == 15


@presuming
def test_of_several_images_the_samples_of_all_count() -> None:
    kept, marks = [], []
    for most in (3, 4):
        labels = computed_labels()
        positions = some_of(torch.where(labels > 0)[0], most)
        marks.append(marked(labels, positions))
        kept.append(labels[positions])
    assert selected(torch.cat(marks)) == 7
    assert selected(torch.cat(kept) > 0) == 7
    assert selected(torch.cat([*kept, computed_labels()]) > 0) == 107


@presuming
def test_marks_of_which_some_are_known_count_these_as_well() -> None:
    labels, marks = computed_labels(), torch.zeros(100, dtype=torch.bool)
    marks[:10] = True
    marks[some_of(torch.arange(100), 5)] = True
    marks[some_of(torch.arange(100), 50)] = False
    assert selected(marks) == 15
    assert selected(marks & (labels > 0)) == 15
    known = torch.arange(100) < 30
    assert selected(known & (labels > 0)) == 30


@pytest.mark.parametrize("mark", [1, torch.tensor(1, dtype=torch.uint8)])
@presuming
def test_positions_may_be_filled_as_well(mark: int | torch.Tensor) -> None:
    marks = torch.zeros(100, dtype=torch.uint8)
    marks.index_fill_(0, some_of(torch.arange(100), 5), mark)
    marks.index_fill_(0, some_of(torch.arange(100), 50), 0)
    assert selected(marks) == 5


@pytest.mark.parametrize("is_of_marks", [True, False])
@presuming
def test_what_is_written_to_since_may_hold_anywhere(is_of_marks: bool) -> None:
    labels = computed_labels()
    positions = some_of(torch.where(labels > 0)[0], 5)
    marks = marked(labels, positions)
    assert selected(marks) == 5
    if is_of_marks:
        marks.bitwise_or_(torch.empty(100) > 0.5)
        assert selected(marks) == 100
    else:
        labels += 1
        assert selected(labels[positions] == 0) == 5  # they were greater than 0


@presuming
def test_other_labels_at_these_positions_may_be_anything() -> None:
    labels, others = computed_labels(), computed_labels()
    positions = some_of(torch.where(labels > 0)[0], 5)
    assert selected(labels[positions] <= 0) == 0
    assert selected(others[positions] <= 0) == 5
    assert selected(positions > 0) == 5


@presuming
def test_where_marks_do_not_hold_is_not_bounded() -> None:
    labels = computed_labels()
    marks = marked(labels, some_of(torch.where(labels > 0)[0], 5)).bool()
    assert selected(marks) == 5
    assert selected(marks == False) == 100  # noqa: E712 - on tensors
    assert selected(~marks) == 100
    assert selected(marks.long() == 0) == 100
    assert selected(torch.cat([marks, labels]) == 0) == 200


@presuming
def test_marks_of_pairs_are_not_bounded_by_those_of_each() -> None:
    marks = torch.cat([marked(computed_labels(), some_of(torch.arange(100), 5))])
    assert selected((marks.unsqueeze(1) & marks.unsqueeze(0)).view(-1)) == 10000
    assert selected((marks.unsqueeze(1) | marks.unsqueeze(0)).view(-1)) == 10000


@presuming
def test_what_is_picked_more_than_once_counts_as_often() -> None:
    labels = computed_labels()
    positions = some_of(torch.where(labels > 0)[0], 5)
    again = torch.empty(40).long()
    assert selected(labels[positions][again] > 0) == 40
    assert selected(marked(labels, positions)[again]) == 40


@presuming
def test_numbers_without_end_bound_nothing() -> None:
    assert selected(computed_labels() < float("inf")) == 100


NUMBER = some.integers(-2, 3)


@given(
    some.lists(NUMBER, min_size=1, max_size=12), some.tuples(*[NUMBER] * 5), some.integers(0, 4), some.integers(0, 4)
)
def test_no_labels_select_more_than_is_counted(
    values: list[int], compared: tuple[int, ...], few: int, many: int
) -> None:
    def counts(labels: torch.Tensor) -> list[int]:
        low = torch.where((labels >= compared[0]) & (labels != compared[1]))[0]
        high = torch.where(labels <= compared[2])[0]
        first, second = some_of(low, few), some_of(high, many)
        sampled = torch.where(marked(labels, first) | marked(labels, second))[0]
        found = torch.cat([labels[sampled], labels[torch.cat([first, second])]])
        return [
            sampled.numel(),
            selected(found > compared[3]),
            selected((found == compared[4]) | (found < compared[3])),
            selected((found != compared[4]) & (found <= compared[2])),
        ]

    found = counts(torch.tensor(values))
    with Presuming.on_fakes():
        bounds = counts(computed_labels(len(values)))
    assert all(count <= bound for count, bound in zip(found, bounds, strict=True))
