"""What the driver reports of a card and of who uses it, as values; what it does not report is None with a reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesReading:
    """Bytes read from the driver, or why there are none.

    Args:
        read_bytes: the figure; None where it cannot be had.
        missing_because: why; None where there is a figure.
    """

    read_bytes: int | None
    missing_because: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardProcess:
    """One process that uses a card.

    Args:
        pid: process id as the driver sees it: the host's, even inside a container.
        name: of its program; None where it cannot be seen from here.
        used_bytes: context, libraries and allocator together; None where the driver does not report it.
        missing_because: why ``used_bytes`` is None.
    """

    pid: int
    name: str | None
    used_bytes: int | None
    missing_because: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardReading:
    """One card of this machine, now.

    Args:
        index: number by which CUDA knows it in this process.
        name: the driver's.
        uuid: the driver's.
        total_bytes: as CUDA reports it, without what the driver keeps for itself.
        used_bytes: by all processes.
        free_bytes: the rest of the total.
        utilisation_percent: share of the last second in which a kernel ran; None where the card does not report it.
        temperature_celsius: of the chip; None where the card does not report it.
        compute_capability: e.g. (8, 6).
        driver_version: e.g. ``580.65.06``.
        processes: those using the card; None where the driver does not list them.
        processes_missing_because: why ``processes`` is None.
    """

    index: int
    name: str
    uuid: str
    total_bytes: int
    used_bytes: int
    free_bytes: int
    utilisation_percent: int | None
    temperature_celsius: int | None
    compute_capability: tuple[int, int] | None
    driver_version: str | None
    processes: tuple[CardProcess, ...] | None
    processes_missing_because: str | None = None
