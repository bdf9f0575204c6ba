"""Which of a machine's cards CUDA shows to a process, by ``CUDA_VISIBLE_DEVICES``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_LEADING_NUMBER = re.compile(r"\s*([+-]?\d+)")


def visible_positions(setting: str | None, uuids: Sequence[str]) -> tuple[int, ...]:
    """Return positions in ``uuids`` in the order CUDA numbers them.

    The rules are CUDA's own (CUDA Programming Guide, "Environment Variables"): the first entry that names no card ends
    the list, and a card named twice empties it. Entries are numbers or beginnings of UUIDs that fit only one card.
    Numbers are taken in bus order (``CUDA_DEVICE_ORDER=PCI_BUS_ID``), which trials set for themselves; with cards of
    different kinds CUDA's default order, the fastest first, may differ in the user's own runs.

    Args:
        setting: value of the variable; None where it is not set, which shows all.
        uuids: of all cards, in bus order.
    """
    if setting is None:
        return tuple(range(len(uuids)))
    chosen: list[int] = []
    for entry in setting.split(","):
        position = _position(entry.strip(), uuids)
        if position is None:
            break
        if position in chosen:
            return ()
        chosen.append(position)
    return tuple(chosen)


def _position(entry: str, uuids: Sequence[str]) -> int | None:
    number = _LEADING_NUMBER.match(entry)  # CUDA reads "1gpu" as 1
    if number is not None:
        return int(number[1]) if 0 <= int(number[1]) < len(uuids) else None
    fitting = [position for position, uuid in enumerate(uuids) if entry and uuid.startswith(entry)]
    return fitting[0] if len(fitting) == 1 else None
