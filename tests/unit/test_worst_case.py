"""The worst batch of ragged data, found and made."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memplan
from memplan.errors import WorkloadError

if TYPE_CHECKING:
    from memplan.worst_case import WorstBatches


def texts(*lengths: int) -> list[str]:
    return ["x" * length for length in lengths]


def of_texts(*lengths: int, **options: object) -> WorstBatches:
    return memplan.worst_batch(texts(*lengths), collate=list, size=len, **options)


def lengths_of(batch: list[str]) -> list[int]:
    return [len(each) for each in batch]


def test_the_worst_batch_is_made_of_the_largest_samples() -> None:
    assert lengths_of(of_texts(3, 9, 1, 7, 5)(3)) == [9, 7, 5]


def test_the_typical_batch_is_made_of_those_nearest_to_the_median() -> None:
    assert sorted(lengths_of(of_texts(1, 90, 50, 49, 52).typical(3))) == [49, 50, 52]


def test_samples_of_one_size_have_no_typical_batch_beside_the_worst() -> None:
    alike = of_texts(4, 4, 4)
    assert (alike.samples_vary, alike.typical(2), lengths_of(alike(2))) == (False, None, [4, 4])


def test_sizes_of_samples_are_shares_of_the_largest_in_their_largest_measure() -> None:
    assert of_texts(3, 9, 6).sample_sizes() == (1 / 3, 1.0, 2 / 3)
    both = memplan.worst_batch([0, 1, 2], collate=list, sizes={"frames": [10, 5, 0], "letters": [1, 3, 4]})
    assert both.sample_sizes() == (1.0, 0.75, 1.0)


def test_where_most_samples_hold_nothing_the_typical_batch_holds_nothing() -> None:
    assert lengths_of(of_texts(1, 0, 5, 0, 0).typical(3)) == [0, 0, 0]


def test_a_batch_larger_than_the_data_set_repeats_its_samples() -> None:
    assert lengths_of(of_texts(2, 3)(5)) == [3, 2, 3, 2, 3]


def test_of_several_measures_each_is_at_its_worst() -> None:
    samples = [(100, 1), (1, 50), (90, 2), (2, 40), (5, 5)]  # seconds of sound, boxes
    batches = memplan.worst_batch(
        samples, collate=list, size={"sound": lambda each: each[0], "boxes": lambda each: each[1]}
    )
    assert batches(2) == [(100, 1), (1, 50)]
    assert batches(4) == [(100, 1), (1, 50), (90, 2), (2, 40)]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), st.integers(1, 40))
def test_no_batch_that_a_sampler_can_draw_is_larger(lengths: list[int], count: int) -> None:
    count = min(count, len(lengths))
    worst = lengths_of(of_texts(*lengths)(count))
    assert sum(worst) == sum(sorted(lengths)[-count:])
    assert max(worst) == max(lengths)


class Unreadable(list):
    def __getitem__(self, index: int) -> str:
        raise AssertionError("read although its size was known")


def test_sizes_that_are_known_are_not_read_from_the_samples() -> None:
    batches = memplan.worst_batch(Unreadable("abc"), collate=list, sizes=[1, 3, 2])
    with pytest.raises(AssertionError, match="although its size was known"):
        batches(1)
    assert memplan.worst_batch([0, 1], collate=list, sizes=np.array([1, 2])).sample_sizes() == (0.5, 1.0)


def test_a_sample_of_absurd_size_is_named_with_what_it_would_be_without() -> None:
    batches = of_texts(*range(90, 110), 98304, *range(90, 110))
    (note,) = batches.notes
    assert note.startswith(
        "1 sample decides the worst batch alone: 20 (size 98304), more than 4 times the median of 100"
    )
    assert "without it the largest is 109" in note


def test_sizes_that_vary_as_they_do_are_not_remarked_upon() -> None:
    assert of_texts(*range(1, 500)).notes == ()


def test_what_is_larger_than_the_guard_is_left_out_and_named() -> None:
    batches = of_texts(5, 900, 7, 800, guard=100)
    assert lengths_of(batches(2)) == [7, 5]
    (note,) = batches.notes
    assert (
        note == "2 samples above the guard of 100 left out: 1 (900), 3 (800); the training must leave them out as well"
    )


def test_of_a_large_data_set_a_part_is_read_and_that_is_said() -> None:
    batches = of_texts(*range(1, 101), look_at=10)
    assert lengths_of(batches(1)) == [91]
    (note,) = batches.notes
    assert note.startswith("the worst batch is that of 10 of 100 samples, spread evenly")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "either size="),
        ({"size": len, "sizes": [1, 2]}, "either size="),
        ({"sizes": [1, 2, 3]}, r"got 3 sizes \(size\) for 2 samples"),
        ({"sizes": [1, None]}, "size 'size' is None, which is no number"),
        ({"sizes": [1, math.nan]}, "size 'size' is nan, by which samples cannot be compared"),
        ({"size": lambda _: math.inf}, "measure 'size' returned inf, by which"),
        ({"size": len, "guard": 0.5}, "all are larger than the guard 0.5"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], problem: str) -> None:
    with pytest.raises(WorkloadError, match=problem):
        memplan.worst_batch(texts(1, 2), collate=list, **options)


def test_an_empty_data_set_is_refused() -> None:
    with pytest.raises(WorkloadError, match="the data set is empty"):
        memplan.worst_batch([], collate=list, size=len)


@pytest.mark.parametrize(
    ("dataset", "options", "said"),
    [
        (None, {"size": len}, "reads samples by index, which a NoneType does not have; give one with len"),
        (SimpleNamespace(dataset=[1]), {"size": len}, "which a SimpleNamespace does not have; give loader.dataset"),
        (["a"], {"size": "len"}, "got size='len'; give a function: sample -> how large it is"),
        (["a"], {"size": lambda _: None}, "measure 'size' returned None, which is no number"),
        (["a"], {"size": len, "guard": "x"}, "got guard='x'; give the largest size as a number"),
    ],
)
def test_arguments_of_another_kind_are_named(dataset: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        memplan.worst_batch(dataset, collate=list, **options)


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        ([("ab", 0), ("abcd", 1)], "len of all 2 samples is 2, the number of their parts: .* len\\(sample\\[0\\]\\)"),
        ([{"text": "ab"}, {"text": "abcd"}], "is 1, the number of their parts: .* len\\(sample\\['text'\\]\\)"),
    ],
)
def test_samples_whose_parts_were_counted_instead_of_measured_are_told(samples: list[Any], said: str) -> None:
    (note,) = memplan.worst_batch(samples, size=len, collate=list).notes
    assert re.search(said, note)


@pytest.mark.parametrize("samples", [["ab", "cd"], [("ab",)], [("a",), ("a", "b")]])
def test_samples_that_may_be_alike_are_not_told_of(samples: list[Any]) -> None:
    assert memplan.worst_batch(samples, size=len, collate=list).notes == ()
