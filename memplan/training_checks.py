"""What a training really took, compared with its plan, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CheckVerdict(StrEnum):
    """Where the device peak of a training lies."""

    INSIDE = "in the band"
    ABOVE = "above the band"
    BELOW = "below the band"
    AS_PLANNED = "below the band, as planned"
    NOT_COMPARED = "not compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPeaks:
    """Peaks of one process of a training so far.

    Args:
        device_name: where it trains.
        allocated_bytes: ``max_memory_allocated``; None on the CPU, where it is not known without a profiler.
        reserved_bytes: ``max_memory_reserved``; None on the CPU.
        process_bytes: resident set on the CPU, data loading in this process included; reserved plus context on CUDA.
        device_bytes: process peak plus what others use on the device.
    """

    device_name: str
    allocated_bytes: int | None
    reserved_bytes: int | None
    process_bytes: int
    device_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCheck:
    """What one process of a training had needed by a certain moment.

    Args:
        made_at: the moment, UTC, ISO 8601.
        rank: of the process; 0 where it was started alone.
        peaks: what was read; None where nothing could be compared.
        planned_device_bytes: device peak that the plan has seen, or predicted; None where it knows none.
        device_total_bytes: what the plan refers its utilisation to.
        verdict: where the device peak lies.
        remark: the same in words.
    """

    made_at: str
    rank: int
    peaks: TrainingPeaks | None
    planned_device_bytes: int | None
    device_total_bytes: int
    verdict: CheckVerdict
    remark: str

    @property
    def utilisation(self) -> float | None:
        """Device peak over what the plan refers to; None where there is nothing to compare."""
        return None if self.peaks is None else self.peaks.device_bytes / self.device_total_bytes
