"""Find the micro-batch whose peak lands in the band, with few trials. Pure: no torch, no processes.

Predict, confirm, correct: the predicted curve of the peak over the micro-batch proposes the size that comes closest to
the upper edge of the band; one trial confirms it. A peak outside the band corrects the curve, and the search tries
again. Only when that fails too, or a reading contradicts the others, does it bisect. Every size it returns was tried.
Where a size fails for another reason than memory, sizes between it and the largest that ran are tried until another
one fails.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING

from memplan.crossings import last_within
from memplan.errors import UsageError
from memplan.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    PeakCurve = Callable[[int], float]  # device peak in bytes over the micro-batch

# Aim no further below the upper edge than this share of what the batch may add to the smallest size's peak: what does
# not follow the batch is read at once.
_MARGIN_OF_GROWTH = 0.2
# A larger size is not tried where it is predicted this far above the upper edge by a curve that agrees this well with
# what was read.
_SURELY_ABOVE_SHARE = 1.1
_AGREEMENT_SHARE = 0.1
_PREDICTED_TRIALS = 2
# A size that lands in the band is left for one predicted to land there too only if that is larger than this: where the
# weights take most of the card, the band holds several sizes and the largest is much the fastest. After two trials only
# a far larger one is worth another two.
_WORTH_A_TRIAL = 1.25
_WORTH_MORE_TRIALS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTarget:
    """Device peaks to land between, in bytes, both ends included, and where between them to aim.

    Args:
        lower_bytes: lower edge.
        upper_bytes: upper edge; a size above it is too large even where it runs.
        limit_bytes: the budget trials are held to; a trial that ran out of memory needed at least this much.
        aim_share: the lowest peak to aim at, as a share of the upper edge: as near as readings repeat and estimates
            hold, so that one that comes out slightly higher still lands inside.
    """

    lower_bytes: int
    upper_bytes: int
    limit_bytes: int
    aim_share: float

    def __post_init__(self) -> None:
        if not 0 <= self.lower_bytes <= self.upper_bytes <= self.limit_bytes:
            values = f"{self.lower_bytes} <= {self.upper_bytes} <= {self.limit_bytes}"
            raise UsageError(f"the band's edges and limit must rise: {values} does not hold")

    def aim_bytes(self, smallest_bytes: float) -> float:
        """Return the peak to aim at: near the upper edge, but no lower than the middle of a narrow band.

        Args:
            smallest_bytes: device peak of the smallest micro-batch.
        """
        growth_bytes = max(self.upper_bytes - smallest_bytes, 0.0)
        margin_bytes = min(self.upper_bytes * (1 - self.aim_share), growth_bytes * _MARGIN_OF_GROWTH)
        return max(self.upper_bytes - margin_bytes, (self.lower_bytes + self.upper_bytes) / 2)


class ReadingKind(StrEnum):
    """What a trial of one size said."""

    FITS = "fits"
    TOO_LARGE = "too large"
    TOO_FEW_SAMPLES = "too few samples"
    FAILED = "failed"


_ABOUT_MEMORY = (ReadingKind.FITS, ReadingKind.TOO_LARGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a trial of one size said.

    Args:
        kind: ``FAILED`` is for another reason than memory: no larger size is tried then, and none after a second.
        peak_bytes: measured device peak; None where the trial ended before it was known.
        available_samples: how many the data has, where they are too few for the size; no larger one is tried then.
    """

    kind: ReadingKind
    peak_bytes: int | None = None
    available_samples: int | None = None

    def __post_init__(self) -> None:
        if self.kind is ReadingKind.FITS and self.peak_bytes is None:
            raise UsageError("a reading that fits needs its peak")
        if (self.kind is ReadingKind.TOO_FEW_SAMPLES) != (self.available_samples is not None):
            raise UsageError("a reading of too few samples says how many there are, and no other does")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found.

    Args:
        best: largest tried size whose peak is not above the band; None where none is.
        smallest_inside: smallest allowed size that is predicted in the band by all that was read; None where none is.
        tried: sizes tried by this search, in order; sizes known before are not among them.
        reached_cap: whether ``best`` is the largest size that was allowed.
        needed_bytes: where nothing fits, the peak of the smallest size, measured or else predicted; None otherwise, and
            where nothing but that it is above the limit is known.
        remark: one line on how the search ended.
    """

    best: int | None
    smallest_inside: int | None
    tried: tuple[int, ...]
    reached_cap: bool
    needed_bytes: int | None
    remark: str


def find_micro_batch(
    ask: Callable[[int], Reading],
    predicted: PeakCurve,
    target: SearchTarget,
    *,
    sizes: Sequence[int],
    known: Mapping[int, Reading] | None = None,
) -> SearchResult:
    """Search the micro-batch whose device peak lands in the band.

    Args:
        ask: runs a trial of one size.
        predicted: the device peak that is expected of a micro-batch, in bytes; it rises with it, at whatever slope.
        target: peaks to land between; a size above it is too large even where it runs.
        sizes: allowed sizes, rising, e.g. ``range(1, cap + 1)`` or the divisors of a global batch.
        known: readings from before, by size; a size in the band is taken, known or tried, unless over a quarter more is
            predicted to land there too, which is then tried.

    Raises:
        UsageError: there are no sizes, or they do not rise from 1 or above.
    """
    if not sizes or sizes[0] < 1 or any(low >= high for low, high in pairwise(sizes)):
        raise UsageError(f"sizes {list(sizes[:5])} must rise from 1 or above")
    search = _Search(predicted, target, sizes, dict(known or {}))
    while (size := search.next_size()) is not None:
        search.learn(size, ask(size))
    return search.result()


class _Search:
    """Readings so far, and what follows from them. Works on places in ``sizes``, so that gaps need no special care."""

    def __init__(
        self, predicted: PeakCurve, target: SearchTarget, sizes: Sequence[int], known: dict[int, Reading]
    ) -> None:
        self._predicted = predicted
        self._target = target
        self._sizes = sizes
        self._readings = {size: reading for size, reading in known.items() if reading.kind in _ABOUT_MEMORY}
        self._tried: list[int] = []
        self._failed: list[int] = []

    def learn(self, size: int, reading: Reading) -> None:
        self._tried.append(size)
        if reading.kind in _ABOUT_MEMORY:
            self._readings[size] = reading
            return
        filled = self._sizes[: bisect_right(self._sizes, reading.available_samples or 0)]
        if not filled or filled[-1] >= size:
            self._failed.append(size)
        else:
            self._sizes = filled

    def next_size(self) -> int | None:
        """Return the next size to try; None where the search is over."""
        best = self._best()
        if self._failed:
            return self._around_failure(best)
        if best is not None and self._is_enough(best):
            return None
        low = -1 if best is None else bisect_right(self._sizes, best) - 1
        high = self._first_too_large_place()
        if high - low <= 1 or self._rest_is_surely_above(best, low):
            return None
        place = self._predicted_place() if self._may_predict() else (low + high) // 2
        return self._sizes[min(max(place, low + 1), high - 1)]

    def _around_failure(self, best: int | None) -> int | None:
        """Return a size halfway, by ratio, to the smallest that did not do; None after two failures, or in the band.

        It is a multiple of the largest that did, where there is one between or, twice as large, one predicted not to be
        above the band: some code takes no other sizes.
        """
        if best is None or len(self._failed) > 1 or self._peak(best) >= self._target.lower_bytes:
            return None
        too_large = self._sizes[self._first_too_large_place() :]
        beyond = min((size for size in (*self._failed, *too_large[:1]) if size > best), default=None)
        halfway = best if beyond is None else math.isqrt(best * beyond)
        multiple = max(round(halfway / best), 2) * best
        if beyond is None or multiple >= beyond:
            may_do = not too_large or multiple < too_large[0]
            if may_do and multiple in self._sizes and self._corrected()(multiple) <= self._target.upper_bytes:
                return multiple
            multiple = halfway
        size = self._sizes[bisect_right(self._sizes, multiple) - 1]
        return size if beyond is not None and size > best and beyond > best * _WORTH_A_TRIAL else None

    def _is_enough(self, best: int) -> bool:
        """Whether a size is in the band and cannot be much enlarged there, as far as a few trials tell."""
        if self._peak(best) < self._target.lower_bytes:
            return False
        if len(self._tried) >= 2 * _PREDICTED_TRIALS:
            return True
        place = self._predicted_place()
        worth = _WORTH_A_TRIAL if len(self._tried) < _PREDICTED_TRIALS else _WORTH_MORE_TRIALS
        return place < 0 or self._sizes[place] <= best * worth

    def result(self) -> SearchResult:
        best = self._best()
        return SearchResult(
            best=best,
            smallest_inside=self._smallest_inside(),
            tried=tuple(self._tried),
            reached_cap=best == self._sizes[-1],
            needed_bytes=self._needed_bytes() if best is None else None,
            remark=self._remark(best),
        )

    def _is_good(self, size: int) -> bool:
        reading = self._readings[size]
        return reading.kind is ReadingKind.FITS and self._peak(size) <= self._target.upper_bytes

    def _peak(self, size: int) -> int:
        return self._readings[size].peak_bytes or 0

    def _best(self) -> int | None:
        """Largest good size below every bad one; a good size above a bad one was luck and is not trusted."""
        ceiling = min((size for size in self._readings if not self._is_good(size)), default=None)
        allowed = (size for size in self._readings if self._is_good(size) and size in self._sizes)
        return max((size for size in allowed if ceiling is None or size < ceiling), default=None)

    def _first_too_large_place(self) -> int:
        bad = [size for size in self._readings if not self._is_good(size)]
        return bisect_right(self._sizes, min(bad) - 1) if bad else len(self._sizes)

    def _rest_is_surely_above(self, best: int | None, low: int) -> bool:
        if best is None:
            return False
        off_bytes = abs(self._predicted(best) - self._peak(best))
        is_confirmed = len(self._points()) > 1 or off_bytes <= _AGREEMENT_SHARE * self._peak(best)
        next_peak = self._corrected()(self._sizes[low + 1])
        return is_confirmed and next_peak > self._target.upper_bytes * _SURELY_ABOVE_SHARE

    def _may_predict(self) -> bool:
        """Whether to follow the line: twice, then alternating with bisection, which bounds the number of trials."""
        return len(self._tried) < _PREDICTED_TRIALS or len(self._tried) % 2 == 0

    def _predicted_place(self) -> int:
        """Place of the largest size predicted at or below the aim, or of the next one where it stays in the band.

        That is taken where no smaller one reaches the band, or where it is so much larger that the margin costs more.
        """
        peak_at = self._corrected()
        aim_bytes = self._target.aim_bytes(peak_at(self._sizes[0]))
        end = self._first_doubling_above(aim_bytes, peak_at)
        place = self._count_within(aim_bytes, end, peak_at) - 1
        if place + 1 == len(self._sizes) or peak_at(self._sizes[place + 1]) > self._target.upper_bytes:
            return place
        falls_short = place < 0 or peak_at(self._sizes[place]) < self._target.lower_bytes
        return place + 1 if falls_short or self._sizes[place + 1] > self._sizes[place] * _WORTH_A_TRIAL else place

    def _smallest_inside(self) -> int | None:
        peak_at, lower_bytes = self._corrected(), float(self._target.lower_bytes)
        end = self._first_doubling_above(lower_bytes, peak_at)
        place = self._count_within(math.nextafter(lower_bytes, 0.0), end, peak_at)
        is_inside = place < len(self._sizes) and peak_at(self._sizes[place]) <= self._target.upper_bytes
        return self._sizes[place] if is_inside else None

    def _first_doubling_above(self, edge_bytes: float, peak_at: PeakCurve) -> int:
        """Double the places from the smallest reading on until one is predicted above an edge; the end where none is.

        Nothing much larger is asked about: where samples vary, a prediction is a trace at that size.
        """
        end = max(bisect_right(self._sizes, min(self._readings, default=1)), 1)
        while end < len(self._sizes) and peak_at(self._sizes[end - 1]) <= edge_bytes:
            end *= 2
        return min(end, len(self._sizes))

    def _count_within(self, edge_bytes: float, end: int, peak_at: PeakCurve) -> int:
        """Return how many of the first sizes up to a place are predicted at an edge or below."""

        def excess_at(place: int) -> float:
            return peak_at(self._sizes[place]) - edge_bytes

        if excess_at(0) > 0:
            return 0
        return end if excess_at(end - 1) <= 0 else last_within(excess_at, 0, end - 1) + 1

    def _points(self) -> list[tuple[int, int]]:
        return sorted((size, peak) for size, each in self._readings.items() if (peak := each.peak_bytes) is not None)

    def _corrected(self) -> PeakCurve:
        """Move the predicted curve onto the measured peaks; out of memory without one means at least the limit."""
        points = self._points()
        curve = _moved(self._predicted, points)
        beyond = min((size for size, each in self._readings.items() if each.peak_bytes is None), default=None)
        if beyond is None or curve(beyond) >= self._target.limit_bytes:
            return curve
        below = [point for point in points if point[0] < beyond]
        return _moved(self._predicted, [*below, (beyond, self._target.limit_bytes)])

    def _needed_bytes(self) -> int | None:
        """Return the smallest size's peak; None where all that is known is that it is above the limit."""
        smallest = self._sizes[0]
        measured = self._readings[smallest].peak_bytes if smallest in self._readings else None
        if measured is not None:
            return measured
        needed_bytes = round(max(self._corrected()(smallest), 0))
        is_lower_bound = smallest in self._readings and needed_bytes <= self._target.limit_bytes
        return None if is_lower_bound else needed_bytes

    def _remark(self, best: int | None) -> str:
        if self._failed:
            return f"the trial at micro-batch {self._failed[-1]} failed for another reason than memory"
        upper = format_bytes(self._target.upper_bytes)
        if best is None:
            needed_bytes = self._needed_bytes()
            limit = format_bytes(self._target.limit_bytes)
            need = f"more than {limit}" if needed_bytes is None else f"about {format_bytes(needed_bytes)}"
            return f"micro-batch {self._sizes[0]} does not fit: it needs {need}, and {upper} are allowed"
        used = format_bytes(self._peak(best))
        if self._peak(best) >= self._target.lower_bytes:
            return f"micro-batch {best} lands in the band at {used}"
        if best == self._sizes[-1]:
            return f"micro-batch {best} is the largest allowed and takes {used}, below the band"
        return f"micro-batch {best} takes {used}; the next larger size would exceed {upper}"


def _moved(predicted: PeakCurve, points: Sequence[tuple[int, int]]) -> PeakCurve:
    """Move a curve onto the two largest sizes read, or the one there is.

    What a curve leaves out keeps its size or follows the batch, so that its bends hold: the straight line through its
    errors is added. Where the errors shrink, a line would lead below all that was read once the curve bends: there the
    curve's rise is scaled instead, so that it still rises. Where much was predicted to be added and nothing was, as by
    a script that does not heed its batch size, no more is added.
    """
    if not points:
        return predicted
    size, peak_bytes = points[-1]
    error_bytes = peak_bytes - predicted(size)
    if len(points) == 1:
        return lambda wanted: predicted(wanted) + error_bytes
    before, before_bytes = points[-2]
    rise_bytes = predicted(size) - predicted(before)
    if peak_bytes <= before_bytes and rise_bytes <= _AGREEMENT_SHARE * peak_bytes:
        return lambda wanted: predicted(wanted) + error_bytes
    slope = (peak_bytes - before_bytes - rise_bytes) / (size - before)
    if slope >= 0:
        return lambda wanted: predicted(wanted) + error_bytes + slope * (wanted - size)
    share = max(peak_bytes - before_bytes, 0) / rise_bytes
    return lambda wanted: peak_bytes + share * (predicted(wanted) - predicted(size))
