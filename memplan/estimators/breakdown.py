"""What is alive at one instant of a timeline: by category, by module, by operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memplan.estimators.step_trace import Category
from memplan.results import PeakShare

if TYPE_CHECKING:
    import numpy.typing as npt

    from memplan.estimators.step_trace import Timeline

SHARES_SHOWN = 10


def live_blocks_at(timeline: Timeline, event: int) -> npt.NDArray[np.int32]:
    """Return the blocks alive right after an event."""
    blocks = timeline.event_blocks[: event + 1]
    allocates = timeline.event_allocates[: event + 1]
    return np.setdiff1d(blocks[allocates], blocks[~allocates])


def category_bytes(
    timeline: Timeline, live: npt.NDArray[np.int32], sizes: npt.NDArray[np.int64]
) -> dict[Category, int]:
    """Sum the requested bytes of the live blocks by category."""
    sums = np.bincount(timeline.categories[live], weights=sizes[live], minlength=len(Category))
    return {category: int(sums[category]) for category in Category}


def largest_shares(
    names: tuple[str, ...], labels: npt.NDArray[np.int32], live: npt.NDArray[np.int32], sizes: npt.NDArray[np.int64]
) -> tuple[PeakShare, ...]:
    """Return the largest holders among the live blocks by label, largest first."""
    sums = np.bincount(labels[live], weights=sizes[live], minlength=len(names))
    order = np.argsort(-sums, kind="stable")[:SHARES_SHOWN]
    return tuple(PeakShare(name=names[each], held_bytes=int(sums[each])) for each in order if sums[each] > 0)
