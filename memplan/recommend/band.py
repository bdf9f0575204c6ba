"""The utilisation band a recommended recipe has to land in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from memplan.errors import NothingFitsError, UsageError
from memplan.units import format_bytes

# A recipe that was planned before is left alone while it is no further than this from the band. On the CPU two runs of
# one recipe differ by an activation-sized block or two, as the heap fragments: six runs spread over 6.7 % of 640 MiB.
REPEATABILITY = 0.05


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
        """Return where a device peak lies."""
        if peak_device_bytes < self.lower_bytes:
            return Place.BELOW
        return Place.INSIDE if peak_device_bytes <= self.upper_bytes else Place.ABOVE


def nothing_fits(
    band: Band, why: str, *, needed_device_bytes: int | None, is_command: bool = False
) -> NothingFitsError:
    """Say that nothing fits below a band's upper edge, why, and what would help.

    Args:
        band: what was wanted.
        why: what was seen or predicted of the recipes.
        needed_device_bytes: least device peak of any of them; None where that is not known.
        is_command: whether a training command is run, of which there is no estimate.
    """
    hint = "how much it would take is not known; give a larger device or budget"
    if needed_device_bytes is not None:
        device = format_bytes(round(needed_device_bytes / band.max_utilisation))
        hint = f"it would take a device or budget of {device}"
        hint += "" if is_command else "; memplan estimate shows what one change would save"
    return NothingFitsError(
        f"nothing fits {format_bytes(band.total_bytes)} at max-util {band.max_utilisation:g}: {why}", hint=hint
    )
