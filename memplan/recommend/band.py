"""The utilisation band a recommended recipe has to land in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from memplan.errors import UsageError


class Place(StrEnum):
    """Where a device peak lies in relation to the band."""

    BELOW = "below the band"
    INSIDE = "in the band"
    ABOVE = "above the band"


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Lowest and highest share of the device that the device peak should take.

    Args:
        total_bytes: what the device, or the budget, offers.
        min_utilisation: lower edge, at least 0.
        max_utilisation: upper edge, at most 1 and above the lower edge.

    Raises:
        UsageError: an edge is out of range.
    """

    total_bytes: int
    min_utilisation: float
    max_utilisation: float

    def __post_init__(self) -> None:
        if not 0 < self.max_utilisation <= 1:
            raise UsageError(
                f"max-util {self.max_utilisation:g} must be above 0 and at most 1", hint="0.8 means 80 % of the device"
            )
        if not 0 <= self.min_utilisation < self.max_utilisation:
            raise UsageError(
                f"min-util {self.min_utilisation:g} must be at least 0 and below max-util {self.max_utilisation:g}"
            )

    @property
    def lower_bytes(self) -> int:
        """Smallest device peak inside the band."""
        return round(self.total_bytes * self.min_utilisation)

    @property
    def upper_bytes(self) -> int:
        """Largest device peak inside the band."""
        return round(self.total_bytes * self.max_utilisation)

    def place(self, peak_device_bytes: int) -> Place:
        """Say where a device peak lies."""
        if peak_device_bytes < self.lower_bytes:
            return Place.BELOW
        return Place.INSIDE if peak_device_bytes <= self.upper_bytes else Place.ABOVE
