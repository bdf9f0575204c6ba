"""Steps that loop over the samples of a batch: every sample more adds the same events in the same places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

_ONCE = np.zeros(1, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLoops:
    """The loops of a timeline that holds one round of each; at other micro-batches there are none or several.

    Args:
        least_samples: the micro-batch at which there is no round of any loop; of fewer samples nothing is known, and
            they count as so many.
        event_loops: number of the loop that each event belongs to, from 1; 0 for events outside of loops.
        runs_backward: whether each loop goes from the last sample to the first, as backward passes do.
        carried: blocks that a round frees and makes anew for the round after it, such as a sum: the number of the one
            that it frees, and of the one that it makes.
    """

    least_samples: int
    event_loops: npt.NDArray[np.int32]
    runs_backward: tuple[bool, ...]
    carried: tuple[tuple[int, int], ...] = ()

    def rounds(self, micro_batch_size: int) -> int:
        """Return how often each loop runs beyond the fewest samples."""
        return max(micro_batch_size - self.least_samples, 0)

    def positions(self, micro_batch_size: int) -> npt.NDArray[np.int64]:
        """Return where each event, or else what follows it, comes first at a micro-batch; one more for the end."""
        repeats = np.where(self.event_loops > 0, self.rounds(micro_batch_size), 1)
        return np.concatenate([[0], np.cumsum(repeats)])

    def unrolled(self, micro_batch_size: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the events at a micro-batch in order, and the round of each, from 0."""
        forward = np.arange(self.rounds(micro_batch_size))
        events, rounds = [], []
        for part in np.split(np.arange(self.event_loops.size), np.flatnonzero(np.diff(self.event_loops)) + 1):
            loop = int(self.event_loops[part[0]])
            in_order = _ONCE if not loop else forward[::-1] if self.runs_backward[loop - 1] else forward
            events.append(np.tile(part, in_order.size))
            rounds.append(np.repeat(in_order, part.size))
        return np.concatenate(events), np.concatenate(rounds)

    def unrolled_blocks(
        self, micro_batch_size: int, event_blocks: npt.NDArray[np.int32], block_count: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the events at a micro-batch in order, the block of each, and which block each block is like.

        Blocks keep their numbers; those of further rounds come after all others, by round.

        Args:
            micro_batch_size: samples.
            event_blocks: block number of each event, with one round of each loop.
            block_count: how many blocks there are with one round.
        """
        count = self.rounds(micro_batch_size)
        repeated = np.setdiff1d(event_blocks[self.event_loops > 0], [freed for freed, _ in self.carried])
        sources = np.concatenate([np.arange(block_count), np.tile(repeated, max(count - 1, 0))])
        events, rounds = self.unrolled(micro_batch_size)
        blocks, loops = event_blocks[events], self.event_loops[events]

        def of_round(block: npt.NDArray[np.int32] | int, number: npt.NDArray[np.int64] | int) -> npt.NDArray[np.int64]:
            copies = block_count + (number - 1) * repeated.size + np.searchsorted(repeated, block)
            return np.where(number > 0, copies, block)

        found = of_round(blocks, rounds)
        runs_backward = np.array((False, *self.runs_backward))[loops]
        before = rounds + np.where(runs_backward, 1, -1)
        for freed, made in self.carried:
            is_freed = (loops > 0) & (blocks == freed)
            of_round_before = of_round(made, np.clip(before, 0, None))
            found = np.where(is_freed, np.where((before >= 0) & (before < count), of_round_before, freed), found)
            last = 0 if runs_backward[is_freed].any() else count - 1
            found[(loops == 0) & (blocks == made)] = of_round(made, last) if count else freed
        return events, found, sources
