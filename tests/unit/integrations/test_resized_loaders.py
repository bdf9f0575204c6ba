"""Data loaders with batches of another size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from memplan.integrations.resized_loaders import resized_loader

if TYPE_CHECKING:
    from collections.abc import Iterator

NUMBERS = list(range(10))


def test_only_the_size_of_the_batches_changes() -> None:
    loader = DataLoader(NUMBERS, batch_size=2, num_workers=2, prefetch_factor=4, collate_fn=tuple, drop_last=True)
    resized = resized_loader(loader, 4)
    assert resized is not None
    assert list(resized) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert (resized.num_workers, resized.prefetch_factor) == (2, 4)
    assert len(loader) == 5


def test_samples_come_in_the_order_of_the_other_one() -> None:
    resized = resized_loader(DataLoader(NUMBERS, sampler=[7, 1, 2]), 2)
    assert resized is not None
    assert [each.tolist() for each in resized] == [[7, 1], [2]]


class Counting(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


def test_a_data_set_that_is_only_iterated_has_no_sampler() -> None:
    resized = resized_loader(DataLoader(Counting(), batch_size=1), 2)
    assert resized is not None
    assert [each.tolist() for each in resized] == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(NUMBERS, batch_size=None),
        DataLoader(NUMBERS, batch_sampler=[[0, 1], [2]]),
        DataLoader(NUMBERS, batch_sampler=type("Own", (BatchSampler,), {})(SequentialSampler(NUMBERS), 2, False)),
    ],
)
def test_batches_that_others_make_cannot_be_resized(loader: DataLoader[Any]) -> None:
    assert resized_loader(loader, 4) is None
