"""Copies of what a kernel changes while its variants are timed: made only where they fit below the peak so far.

Inductor asks anew before it times each variant (``CachingAutotuner.copy_args_to_cpu_if_needed`` in
``torch/_inductor/runtime/triton_heuristics.py``, torch 2.13), and what overwrites the card's cache while the first is
timed makes room for copies for the second.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from memplan.estimators.allocators.allocator_config import UNIT_BYTES
from memplan.estimators.temporaries.ruled_blocks import no_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCopy:
    """One copy of a tensor while one variant of a kernel is timed.

    Args:
        timing: number of the timing, counted over a run.
        place: which of the tensors that the kernel changes is copied.
    """

    timing: int
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCopies:
    """Those blocks of a timeline that are such copies.

    Args:
        blocks: block numbers.
        timings: number of the timing that each is for, ascending.
        places: which of the tensors that the kernel changes each copies.
    """

    blocks: npt.NDArray[np.int32] = field(default_factory=no_numbers)
    timings: npt.NDArray[np.int32] = field(default_factory=no_numbers)
    places: npt.NDArray[np.int32] = field(default_factory=no_numbers)

    def not_made(
        self,
        block_bytes: npt.NDArray[np.int64],
        event_blocks: npt.NDArray[np.int32],
        event_allocates: npt.NDArray[np.bool_],
    ) -> npt.NDArray[np.int32]:
        """Return the blocks for which there is no room below the peak so far.

        Args:
            block_bytes: requested bytes of each block of the timeline, copies made or not.
            event_blocks: block number of each event.
            event_allocates: whether each event allocates its block.
        """
        allocated = -(-block_bytes // UNIT_BYTES) * UNIT_BYTES  # the allocator counts whole ones
        changes = np.where(event_allocates, 1, -1) * allocated[event_blocks]
        live = np.cumsum(changes)
        events = _first_and_last_events(event_blocks, block_bytes.size)
        peak, looked_at = 0, 0
        left_out: list[npt.NDArray[np.int32]] = []
        for copies in np.split(np.arange(self.blocks.size), np.flatnonzero(np.diff(self.timings)) + 1):
            blocks = self.blocks[copies]
            first, last = events[0, blocks].min(), events[1, blocks].max()
            before = int(live[first - 1]) if first else 0
            peak = max(peak, int(live[looked_at:first].max(initial=0)))
            fitting = _places_that_fit(block_bytes[blocks], self.places[copies], peak - before)
            omitted = blocks[~np.isin(self.places[copies], fitting)]
            during = slice(first, last + 1)
            made = ~np.isin(event_blocks[during], omitted)
            peak = max(peak, before + int(np.cumsum(changes[during] * made).max(initial=0)))
            left_out.append(omitted)
            looked_at = last + 1
        return np.concatenate(left_out)


def _first_and_last_events(event_blocks: npt.NDArray[np.int32], block_count: int) -> npt.NDArray[np.intp]:
    """Return the number of the first and of the last event of each block, shape (2, blocks)."""
    found = np.zeros((2, block_count), dtype=np.intp)
    found[0, event_blocks[::-1]] = np.arange(event_blocks.size)[::-1]
    found[1, event_blocks] = np.arange(event_blocks.size)
    return found


def _places_that_fit(block_bytes: npt.NDArray[np.int64], places: npt.NDArray[np.int32], room_bytes: int) -> list[int]:
    """Return the tensors whose copies fit beside those of the ones before them."""
    fitting = []
    for place in np.unique(places).tolist():
        size_bytes = int(block_bytes[places == place][0])
        if size_bytes <= room_bytes:
            fitting.append(place)
            room_bytes -= size_bytes
    return fitting
