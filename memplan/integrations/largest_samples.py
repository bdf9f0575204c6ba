"""The worst batch of a framework's dataset: its largest samples, since a plan must hold for the longest ones."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memplan.errors import WorkloadError
from memplan.worst_case import WorstBatches, spread_over, worst_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memplan.worst_case import Measure

_ALIKE = 8
_IMAGES = 512  # are decoded and augmented for it, in every child process
_FROM_STREAM = 256
_DEEPEST = 8
_LONGEST_NAME = 255
_SCALAR_BYTES = 8


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


@dataclass(frozen=True, slots=True)
class _Value:
    """One value of a sample.

    Args:
        size: bytes of a tensor or array, characters of a text, numbers of a list; else one.
        is_array: whether it is a tensor or array, and no single number.
        is_name: whether it is a single word, as a path, an identifier or the name of a class is.
    """

    size: int
    is_array: bool = False
    is_name: bool = False


def size_of(sample: Any) -> int:
    """Return how much data a sample holds: bytes of tensors and arrays, one for every other value.

    Texts count by their length, but for names and paths beside tensors or arrays, which no batch is made of. Objects of
    other kinds are looked into by their attributes.
    """
    values = list(_values(sample, 0))
    names_count = not any(each.is_array for each in values)
    return sum(each.size if names_count or not each.is_name else 1 for each in values) or 1


def _values(sample: Any, depth: int) -> Iterator[_Value]:
    nbytes = getattr(sample, "nbytes", None)
    if isinstance(nbytes, int):
        yield _Value(nbytes, is_array=nbytes > _SCALAR_BYTES)
    elif isinstance(sample, str):
        is_word = sample.isascii() and len(sample.split()) <= 1  # scripts without spaces are of other characters
        yield _Value(len(sample), is_name=is_word and len(sample) <= _LONGEST_NAME)
    elif isinstance(sample, bytes):
        yield _Value(len(sample))
    elif depth > _DEEPEST:
        yield _Value(1)
    elif isinstance(sample, list | tuple) and (not sample or isinstance(sample[0], int | float)):
        yield _Value(len(sample))
    elif isinstance(sample, list | tuple):
        for each in sample:
            yield from _values(each, depth + 1)
    else:
        members = sample if isinstance(sample, Mapping) else getattr(sample, "__dict__", {})
        yield from itertools.chain.from_iterable(_values(each, depth + 1) for each in members.values())
        if not members:
            yield _Value(1)
