"""The worst batch is made of the largest samples."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from memplan.errors import WorkloadError
from memplan.integrations.largest_samples import largest_samples, number_of_samples, size_of


class Counted:
    """A dataset that counts how often it is read."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths
        self.reads = 0

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        self.reads += 1
        return {"input_ids": [0] * self.lengths[index]}


def lengths_of(samples: list[dict[str, list[int]]]) -> list[int]:
    return [len(each["input_ids"]) for each in samples]


@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=30), count=st.integers(1, 40))
def test_the_longest_come_first_and_over_again_where_there_are_fewer(lengths: list[int], count: int) -> None:
    taken = lengths_of(largest_samples(Counted(lengths), look_at=100)(count))
    few = lengths if len(lengths) < 8 else [lengths[number * len(lengths) // 8] for number in range(8)]
    looked_at = few if len(set(few)) == 1 else lengths
    longest = sorted(looked_at, reverse=True)[:count]
    assert taken == [longest[index % len(longest)] for index in range(count)]


def test_a_dataset_that_begins_with_samples_of_one_size_is_looked_through() -> None:
    assert lengths_of(largest_samples(Counted([5] * 500 + [7, 9] * 250), look_at=1000)(2)) == [9, 9]


def test_samples_of_one_size_are_not_all_read() -> None:
    dataset = Counted([5] * 1000)
    largest_samples(dataset, look_at=500)(2)
    assert dataset.reads == 18  # eight compared, the same eight ranked, two taken


def test_only_so_many_are_looked_at_spread_over_the_dataset() -> None:
    dataset = Counted(list(range(1, 1001)))
    taken = lengths_of(largest_samples(dataset, look_at=10)(1))
    assert taken == [901]
    assert dataset.reads == 19  # eight compared, ten ranked, one taken


def test_a_stream_is_looked_at_from_its_beginning() -> None:
    stream = ({"input_ids": [0] * length} for length in (1, 9, 3))
    assert lengths_of(largest_samples(stream, look_at=10)(2)) == [9, 3]


def test_an_empty_dataset_is_an_error_that_says_so() -> None:
    with pytest.raises(WorkloadError, match="training dataset is empty"):
        largest_samples([], look_at=10)


def test_size_counts_bytes_of_tensors_and_one_for_any_other_value() -> None:
    assert size_of({"image": torch.ones(4), "label": 3}) == 17
    assert size_of((torch.ones(2), [torch.ones(1), torch.ones(1)])) == 16


def test_names_and_paths_beside_tensors_do_not_make_a_sample_larger() -> None:
    def image(path: str, flip: str | None) -> dict[str, object]:
        return {"image": torch.ones(4), "path": path, "flip": flip}

    assert size_of(image("a.jpg", None)) == size_of(image("folder/longer.jpg", "horizontal")) == 18


def test_texts_make_a_sample_larger_beside_tensors_too() -> None:
    assert size_of({"image": torch.ones(4), "caption": "a dog runs"}) == 16 + 10
    assert size_of({"image": torch.ones(4), "caption": "犬が走る"}) == 16 + 4


def test_a_single_word_counts_by_its_length_where_it_is_the_data() -> None:
    assert size_of({"molecule": "CCO", "label": torch.tensor(1)}) == 3 + 8


class Selectable(Counted):
    """Like a Hugging Face dataset."""

    def select(self, indices: list[int]) -> Selectable:
        return Selectable([self.lengths[index] for index in indices])


def test_samples_of_a_hugging_face_dataset_are_such_a_dataset_where_its_trainers_ask_for_one() -> None:
    taken = largest_samples(Selectable([3, 9, 5]), look_at=10, by_selection=True)(2)
    assert (type(taken), taken.lengths) == (Selectable, [9, 5])
    assert type(largest_samples(Selectable([3, 9, 5]), look_at=10)(2)) is list


def test_only_datasets_with_a_length_say_how_many_samples_they_have() -> None:
    assert number_of_samples([1, 2, 3]) == 3
    assert number_of_samples([]) is None
    assert number_of_samples(iter([1, 2, 3])) is None
    assert number_of_samples(None) is None
