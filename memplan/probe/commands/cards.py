"""The cards that a training command's replicas use, one each: which of them it sees, and what is held on them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from memplan.devices.cards import DeviceKind
from memplan.devices.driver import device_used_bytes, process_used_bytes

if TYPE_CHECKING:
    from memplan.probe.commands.events import CardFigures
    from memplan.probe.trials import TrialRequest


def visible_cards(request: TrialRequest) -> dict[str, str]:
    """Hide all cards from a trial on the CPU, and all but its own from one that is not on the first card."""
    if request.device.kind is DeviceKind.CPU:
        return {"CUDA_VISIBLE_DEVICES": ""}
    indices, setting = request.card_indices, os.environ.get("CUDA_VISIBLE_DEVICES")
    if not indices or not indices[0]:
        return {}
    names = setting.split(",")[indices[0] : indices[-1] + 1] if setting else map(str, indices)
    return {"CUDA_VISIBLE_DEVICES": ",".join(names)}


def allocator_limit_bytes(request: TrialRequest, others_bytes: int) -> int:
    """Return what the allocator may take of a card, so that the card's use stays within the budget."""
    return max(request.budget_bytes - others_bytes - request.device.context_bytes, 0)


class CardWatch:
    """Queries the driver for what a trial's processes hold on its cards, and what others do.

    Args:
        card_indices: numbers by which CUDA knows the cards in this process; none for a trial on the CPU.
    """

    def __init__(self, card_indices: tuple[int, ...]) -> None:
        self.context_bytes: dict[int, int] = {}
        self.others_bytes: dict[int, int] = {}
        self._first = card_indices[0] if card_indices else 0
        self._before_bytes = {index: device_used_bytes(index).read_bytes or 0 for index in card_indices}

    @property
    def others_before_bytes(self) -> int:
        """What others held before the trial, on the card where that was most."""
        return max(self._before_bytes.values(), default=0)

    def read(self, pid: int, card: CardFigures) -> None:
        """Record for each process what it holds beyond its allocator's segments, and what others hold on its card."""
        index = self._first + card.index
        before_bytes = self._before_bytes.get(index, 0)
        used_bytes = device_used_bytes(index).read_bytes or card.used_bytes
        held_bytes = process_used_bytes(index, pid).read_bytes
        if held_bytes is None:
            held_bytes = max(used_bytes - before_bytes, 0)
        self.context_bytes[pid] = max(held_bytes - card.reserved_bytes, 0)
        self.others_bytes[pid] = max(before_bytes, used_bytes - held_bytes)
