"""The worst batch of a data set whose samples differ in size, found by looking at the samples and made for any size.

Batches are usually padded to their largest member, or joined one behind the other; of either kind the worst that a
sampler can draw is made of the largest samples. Where several things can be large (long audio, many boxes), the batch
takes the largest of each in turn, so that every padded length is at its worst at once.

Torch is not needed here, and nothing is drawn at random.
"""

from __future__ import annotations

import itertools
import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

from memplan.errors import WorkloadError

Measure = Callable[[Any], float]

_LOOKED_AT = 20_000
# A sample this many times as large as the 99th percentile, or the median of a small data set, is named.
_OUTLIER = 4.0
_LARGE_ENOUGH_FOR_PERCENTILES = 100
_NAMED_OUTLIERS = 3


class SizedDataset(Protocol):
    """Samples by index, such as a map-style PyTorch data set."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, index: int, /) -> Any:
        """Return one sample."""


class KnowsSamples(ABC):
    """What batches are made by, and what is known of their samples."""

    @property
    @abstractmethod
    def notes(self) -> tuple[str, ...]:
        """Return what the user should know of the sizes, one phrase each."""


class WorstBatches(KnowsSamples):
    """Makes the worst batch of any micro-batch size, and the typical one; made by :func:`worst_batch`.

    Args:
        dataset: the samples.
        collate: makes a batch of a list of samples.
        worst_first: positions in the data set, the largest first.
        by_typicality: the same, the most typical first.
        shares: how large each sample is, as a share of the largest; see :meth:`sample_sizes`.
        notes: what the user should know of the sizes, one phrase each.
    """

    def __init__(
        self,
        dataset: SizedDataset,
        collate: Callable[[list[Any]], Any],
        *,
        worst_first: Sequence[int],
        by_typicality: Sequence[int],
        shares: Sequence[float],
        notes: tuple[str, ...],
    ) -> None:
        self._notes = notes
        self._dataset = dataset
        self._collate = collate
        self._worst_first = tuple(worst_first)
        self._by_typicality = tuple(by_typicality)
        self._shares = tuple(shares)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what the user should know of the sizes, one phrase each."""
        return self._notes

    @property
    def samples_vary(self) -> bool:
        """Whether the samples that were looked at differ in size."""
        return len(set(self._shares)) > 1

    def __call__(self, micro_batch_size: int) -> Any:
        """Return a batch of the largest samples; they repeat where the data set has fewer."""
        return self._batch(self._worst_first, micro_batch_size)

    def typical(self, micro_batch_size: int) -> Any | None:
        """Return a batch of the samples nearest to the median in size; None where all are of one size."""
        return self._batch(self._by_typicality, micro_batch_size) if self.samples_vary else None

    def sample_sizes(self) -> tuple[float, ...]:
        """Return how large samples are, as shares of the largest, in the measure where each is largest."""
        return self._shares

    def _batch(self, order: Sequence[int], size: int) -> Any:
        return self._collate([self._dataset[index] for index in itertools.islice(itertools.cycle(order), size)])


def worst_batch(
    dataset: SizedDataset,
    *,
    collate: Callable[[list[Any]], Any],
    size: Measure | Mapping[str, Measure] | None = None,
    sizes: Sequence[float] | Mapping[str, Sequence[float]] | None = None,
    guard: float | None = None,
    look_at: int = _LOOKED_AT,
) -> WorstBatches:
    """Look at a data set's samples and return what makes its worst batches: ``Workload(batch=worst_batch(...), ...)``.

    The samples are read once, now. ``Workload(typical_batch=batches.typical)`` has the typical batch reported beside,
    and with ``sample_sizes=batches.sample_sizes`` estimates tell what steps on batches drawn at random come to hold.

    Args:
        dataset: map-style data set; only ``len`` and indexing are used.
        collate: makes a batch of a list of samples, as the loader does.
        size: sample -> how large it is (length, boxes, points), or several such measures by name.
        sizes: the same figures where they are known already, one for each sample; then none is read.
        guard: samples larger than this in any measure are left out, as the training must leave them out too.
        look_at: most samples to read, spread evenly over the data set.

    Raises:
        WorkloadError: neither or both of ``size`` and ``sizes`` are given, an argument is of another kind, a measure
            returns no number, or there is no sample to choose from.
    """
    _require_arguments(dataset, size, guard)
    if not len(dataset):
        raise WorkloadError("worst_batch finds no samples: the data set is empty")
    if size is not None and sizes is None:
        measured = _read(dataset, size, look_at)
    elif size is None and sizes is not None:
        measured = _given(sizes, len(dataset))
    else:
        raise WorkloadError("worst_batch needs either size=, a measure, or sizes=, the figures themselves")
    kept = measured.within(guard)
    if not kept.indices:
        raise WorkloadError(f"worst_batch leaves no samples: all are larger than the guard {guard:g}")
    notes = (
        *_measured_by_parts(dataset, size, measured),
        *_partly_read(dataset, measured),
        *_left_out(measured, kept, guard),
        *kept.outliers(),
    )
    return WorstBatches(
        dataset,
        collate,
        worst_first=kept.worst_first(),
        by_typicality=kept.by_typicality(),
        shares=kept.shares(),
        notes=notes,
    )


def notes_on_samples(batch: object) -> tuple[str, ...]:
    """Return what the user should know of the samples behind a batch function; nothing of one made by other means."""
    maker = getattr(batch, "__self__", batch)
    return maker.notes if isinstance(maker, KnowsSamples) else ()


def _require_arguments(dataset: object, size: object, guard: object) -> None:
    kind = type(dataset).__name__
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        hint = "give loader.dataset" if hasattr(dataset, "dataset") else "give one with len() and dataset[index]"
        raise WorkloadError(f"worst_batch reads samples by index, which a {kind} does not have", hint=hint)
    measures = list(size.values()) if isinstance(size, Mapping) else [size]
    if size is not None and not all(map(callable, measures)):
        raise WorkloadError(f"worst_batch got size={size!r}", hint="give a function: sample -> how large it is")
    if guard is not None and not isinstance(guard, Real):
        raise WorkloadError(f"worst_batch got guard={guard!r}", hint="give the largest size as a number")


def spread_over(length: int, count: int) -> list[int]:
    """Return so many positions of a sequence, evenly spaced from the first on; all where there are no more."""
    count = min(length, count)
    return [number * length // count for number in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """How large samples are.

    Args:
        indices: their positions in the data set.
        measures: what each is measured by, in the order of the positions.
    """

    indices: tuple[int, ...]
    measures: Mapping[str, tuple[float, ...]]

    def within(self, guard: float | None) -> _Sizes:
        """Leave out samples that are larger than the guard in any measure."""
        if guard is None:
            return self
        kept = [place for place in range(len(self.indices)) if all(each[place] <= guard for each in self._figures())]
        return _Sizes(
            indices=tuple(self.indices[place] for place in kept),
            measures={name: tuple(figures[place] for place in kept) for name, figures in self.measures.items()},
        )

    def worst_first(self) -> list[int]:
        """Positions by size, the largest of each measure in turn, each once."""
        places = range(len(self.indices))
        rankings = [sorted(places, key=lambda place: -figures[place]) for figures in self._figures()]
        ranked = dict.fromkeys(itertools.chain.from_iterable(zip(*rankings, strict=True)))
        return [self.indices[place] for place in ranked]

    def by_typicality(self) -> list[int]:
        """Positions by how far they are from the median, as a share of it, in the measure where that is furthest."""
        medians = [(figures, statistics.median(figures)) for figures in self._figures()]

        def distance(place: int) -> float:
            return max(abs(figures[place] - median) / (median or 1.0) for figures, median in medians)

        return [self.indices[place] for place in sorted(range(len(self.indices)), key=distance)]

    def shares(self) -> list[float]:
        """Sizes as shares of the largest, in the measure where a sample is largest."""
        largest = [(figures, max(figures) or 1.0) for figures in self._figures()]
        return [max(figures[place] / most for figures, most in largest) for place in range(len(self.indices))]

    def outliers(self) -> list[str]:
        """Name the samples that are many times as large as nearly all others."""
        return [said for name, figures in self.measures.items() if (said := self._outliers_of(name, figures))]

    def _outliers_of(self, name: str, figures: tuple[float, ...]) -> str | None:
        usual, what = _usual(figures)
        places = [place for place, figure in enumerate(figures) if usual > 0 and figure > _OUTLIER * usual]
        if not places:
            return None
        places.sort(key=lambda place: -figures[place])
        named = ", ".join(f"{self.indices[place]} ({name} {figures[place]:g})" for place in places[:_NAMED_OUTLIERS])
        more = f" and {len(places) - _NAMED_OUTLIERS} more" if len(places) > _NAMED_OUTLIERS else ""
        decide, them = ("decides", "it") if len(places) == 1 else ("decide", "them")
        rest = max((figure for place, figure in enumerate(figures) if place not in set(places)), default=0)
        found = f"{_samples(len(places))} {decide} the worst batch alone: {named}{more}"
        return (
            f"{found}, more than {_OUTLIER:g} times {what} of {usual:g}; without {them} the largest is {rest:g}: "
            f"leave {them} out of the training, or cut {them}, and name the limit by guard= of worst_batch"
        )

    def _figures(self) -> tuple[tuple[float, ...], ...]:
        return tuple(self.measures.values())


def _usual(figures: Sequence[float]) -> tuple[float, str]:
    if len(figures) < _LARGE_ENOUGH_FOR_PERCENTILES:
        return statistics.median(figures), "the median"
    return statistics.quantiles(figures, n=100)[98], "the 99th percentile"


def _samples(count: int) -> str:
    return f"{count} sample" + ("" if count == 1 else "s")


def _given(sizes: Sequence[float] | Mapping[str, Sequence[float]], count: int) -> _Sizes:
    named = sizes if isinstance(sizes, Mapping) else {"size": sizes}
    for name, figures in named.items():
        if len(figures) != count:
            raise WorkloadError(f"worst_batch got {len(figures)} sizes ({name}) for {_samples(count)}")
    measures = {name: tuple(_number(f"size {name!r} is", each) for each in figures) for name, figures in named.items()}
    return _Sizes(indices=tuple(range(count)), measures=measures)


def _read(dataset: SizedDataset, size: Measure | Mapping[str, Measure], look_at: int) -> _Sizes:
    named = size if isinstance(size, Mapping) else {"size": size}
    indices = tuple(spread_over(len(dataset), look_at))
    rows = [_measured(dataset[index], named) for index in indices]
    columns = zip(*rows, strict=True)
    return _Sizes(indices=indices, measures=dict(zip(named, columns, strict=True)))


def _measured(sample: Any, measures: Mapping[str, Measure]) -> tuple[float, ...]:
    return tuple(_number(f"measure {name!r} returned", measure(sample)) for name, measure in measures.items())


def _number(said: str, figure: object) -> float:
    try:
        number = float(figure)  # type: ignore[arg-type]  # what the user's measure returns
    except (TypeError, ValueError):
        raise WorkloadError(f"worst_batch's {said} {figure!r}, which is no number") from None
    if not math.isfinite(number):
        raise WorkloadError(f"worst_batch's {said} {figure!r}, by which samples cannot be compared")
    return number


def _measured_by_parts(dataset: SizedDataset, size: object, sizes: _Sizes) -> list[str]:
    """Say where ``len`` counted the parts of samples, which are as many in each, instead of measuring them."""
    if size is not len or not isinstance(dataset[0], tuple | Mapping):
        return []
    ((parts, *others),) = sizes.measures.values()
    if not others or any(each != parts for each in others):
        return []
    key = repr(next(iter(dataset[0]), 0)) if isinstance(dataset[0], Mapping) else "0"
    said = f"len of all {_samples(len(sizes.indices))} is {parts:g}, the number of their parts"
    return [f"{said}: measure the part that varies, as size=lambda sample: len(sample[{key}])"]


def _partly_read(dataset: SizedDataset, sizes: _Sizes) -> list[str]:
    if len(sizes.indices) == len(dataset):
        return []
    said = f"the worst batch is that of {len(sizes.indices)} of {_samples(len(dataset))}, spread evenly"
    return [f"{said}; sizes= or a larger look_at= takes all into account"]


def _left_out(sizes: _Sizes, kept: _Sizes, guard: float | None) -> list[str]:
    places = {index: place for place, index in enumerate(sizes.indices)}
    gone = sorted(set(sizes.indices) - set(kept.indices))
    if not gone or guard is None:
        return []
    named = ", ".join(
        f"{index} ({max(figures[places[index]] for figures in sizes.measures.values()):g})"
        for index in gone[:_NAMED_OUTLIERS]
    )
    more = f" and {len(gone) - _NAMED_OUTLIERS} more" if len(gone) > _NAMED_OUTLIERS else ""
    said = f"{_samples(len(gone))} above the guard of {guard:g} left out: {named}{more}"
    return [f"{said}; the training must leave them out as well"]
