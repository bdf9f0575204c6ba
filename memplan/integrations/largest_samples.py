"""The worst batch of a dataset: its largest samples, since a plan must hold for the longest sequences it will meet."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

_ALIKE = 8
_FROM_STREAM = 256
_DEEPEST = 8


class LargestSamples:
    """Finds the largest samples of a dataset.

    A dataset is looked at evenly spaced. Where a few samples from all over it are of one size the rest is taken to be
    so too; else up to ``look_at`` are read, and the largest of those are taken. Of a dataset that can only be iterated
    the first are looked at.

    Args:
        dataset: anything with ``__getitem__`` and ``__len__``, or an iterable.
        look_at: how many samples are read at most.
    """

    def __init__(self, dataset: Any, *, look_at: int) -> None:
        self._is_indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        first = min(look_at, _FROM_STREAM)
        self._samples = dataset if self._is_indexed else list(itertools.islice(iter(dataset), first))
        self._look_at = look_at
        self._ranked: list[int] | None = None

    def take(self, count: int) -> list[Any]:
        """Return ``count`` samples, the largest first; over again where there are fewer.

        Raises:
            ValueError: the dataset is empty.
        """
        if self._ranked is None:
            sizes = self._sizes()
            self._ranked = sorted(sizes, key=lambda index: sizes[index], reverse=True)
        if not self._ranked:
            raise ValueError("the training dataset is empty")
        samples = [self._samples[index] for index in self._ranked[:count]]
        return list(itertools.islice(itertools.cycle(samples), count))

    def _sizes(self) -> dict[int, int]:
        length = len(self._samples)
        wanted = min(length, self._look_at)
        indices = _spread(length, wanted)
        found = {indices[place]: size_of(self._samples[indices[place]]) for place in _spread(wanted, _ALIKE)}
        if len(set(found.values())) > 1:
            found.update({index: size_of(self._samples[index]) for index in indices if index not in found})
        return found


def _spread(length: int, count: int) -> list[int]:
    """Return so many positions, evenly spaced from the first on; all where there are no more."""
    count = min(length, count)
    return [number * length // count for number in range(count)]


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
