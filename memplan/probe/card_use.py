"""What takes the memory of a card, by the driver's figures: this process's context, and everything on the card.

Imports torch; child processes only. Where NVML does not report what a process holds (containers, MIG), the context is
the growth of the whole card's use, which neighbours can disturb.
"""

from __future__ import annotations

import os

import torch

from memplan.devices.driver import device_used_bytes, process_used_bytes


class CardUse:
    """Reads the use of one card.

    Args:
        index: CUDA index of the card.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._notes: dict[str, None] = {}
        self._has_own_context = True

    @property
    def notes(self) -> tuple[str, ...]:
        """What the driver did not report and which figure took its place, one phrase each."""
        return tuple(self._notes)

    @property
    def has_own_context(self) -> bool:
        """Whether every context so far was that of this process alone; False where others' use may be in it."""
        return self._has_own_context

    def context_bytes(self, others_bytes: int) -> int:
        """Return what the driver charges this process beyond its allocator's segments.

        Args:
            others_bytes: what other processes use, for where the driver only reports the use of the whole card.
        """
        reading = process_used_bytes(self._index, os.getpid())
        process_bytes = reading.read_bytes
        if process_bytes is None:
            self._has_own_context = False
            process_bytes = self.used_bytes() - others_bytes
            note = f"the context is taken from the growth of the whole card's use: {reading.missing_because}"
            self._notes[note] = None
        return max(process_bytes - torch.cuda.memory_reserved(self._index), 0)

    def used_bytes(self) -> int:
        """Return what all processes use on the card, by CUDA's own figure where the driver reports none."""
        reading = device_used_bytes(self._index)
        if reading.read_bytes is None:
            free_bytes, total_bytes = torch.cuda.mem_get_info(self._index)
            self._notes[f"the card's use is CUDA's own figure: {reading.missing_because}"] = None
            return total_bytes - free_bytes
        return reading.read_bytes
