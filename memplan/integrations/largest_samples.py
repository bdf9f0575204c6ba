"""The worst batch of a framework's dataset: its largest samples, since a plan must hold for the longest ones."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memplan.errors import WorkloadError
from memplan.worst_case import WorstBatches, spread_over, worst_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.worst_case import Measure

_ALIKE = 8
_IMAGES = 512  # are decoded and augmented for it, in every child process
_FROM_STREAM = 256
_DEEPEST = 8


def largest_samples(dataset: Any, *, look_at: int = _IMAGES, by_selection: bool = False) -> WorstBatches:
    """Return a function from a number to as many samples, the largest first; they repeat where the dataset has fewer.

    Where a few samples from all over the dataset are of one size, the rest are presumed to be too. Of a dataset that
    can only be iterated, the first samples are read.

    Args:
        dataset: anything with ``__getitem__`` and ``__len__``, or an iterable.
        look_at: how many samples are read at most; as many as there is time for where they are images.
        by_selection: whether those of a Hugging Face dataset are such a dataset again, of which its Trainers may take
            no list.

    Raises:
        WorkloadError: the dataset is empty.
    """
    samples = dataset if _is_indexed(dataset) else list(itertools.islice(iter(dataset), min(look_at, _FROM_STREAM)))
    if not len(samples):
        raise WorkloadError("the training dataset is empty")
    if by_selection and hasattr(dataset, "select"):
        return _ranked(range(len(dataset)), dataset.select, lambda index: size_of(dataset[index]), look_at)
    return _ranked(samples, list, size_of, look_at)


def number_of_samples(dataset: Any) -> int | None:
    """Return how many samples a dataset has; None for an empty one, or one that does not say, as iterable ones."""
    try:
        return len(dataset) or None
    except TypeError:
        return None


def _ranked(samples: Any, collate: Callable[[list[Any]], Any], size: Measure, look_at: int) -> WorstBatches:
    is_one_size = len({size(samples[index]) for index in spread_over(len(samples), _ALIKE)}) == 1
    return worst_batch(samples, collate=collate, size=size, look_at=_ALIKE if is_one_size else look_at)


def _is_indexed(dataset: Any) -> bool:
    return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


def size_of(sample: Any, depth: int = 0) -> int:
    """Return how much data a sample holds: bytes of tensors and arrays, one for every other value.

    Objects of other kinds are looked into by their attributes.
    """
    nbytes = getattr(sample, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    if isinstance(sample, str | bytes):
        return len(sample)
    if depth > _DEEPEST:
        return 1
    if isinstance(sample, list | tuple) and (not sample or isinstance(sample[0], int | float)):
        return len(sample)
    if isinstance(sample, list | tuple):
        return sum(size_of(each, depth + 1) for each in sample)
    members = sample if isinstance(sample, Mapping) else getattr(sample, "__dict__", {})
    return sum(size_of(each, depth + 1) for each in members.values()) or 1
