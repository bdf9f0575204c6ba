"""What a device offers, as a value, and the catalogue of cards one can plan for without having one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class DeviceKind(StrEnum):
    """What kind of device a step runs on."""

    CUDA = "cuda"
    CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One device to plan for.

    Args:
        name: card name from the catalogue, the driver's name of a live card, or ``cpu``.
        kind: CUDA card or CPU.
        total_bytes: memory the device offers: as CUDA reports it, or the CPU's budget.
        compute_capability: e.g. (8, 6); None on the CPU or where only a size is known.
        sm_count: streaming multiprocessors; None on the CPU or where only a size is known.
        context_bytes: typical CUDA context with the libraries of a training step, outside the caching allocator; on the
            CPU the resident interpreter and libraries. None where it is not known.
        live_index: CUDA index of a card that is present in this machine; None for one that is only planned for.
    """

    name: str
    kind: DeviceKind
    total_bytes: int
    compute_capability: tuple[int, int] | None = None
    sm_count: int | None = None
    context_bytes: int | None = None
    live_index: int | None = None
