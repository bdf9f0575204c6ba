"""What a plan says of a training whose batches vary in size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.results import OutcomeKind
from memplan.units import format_bytes

if TYPE_CHECKING:
    from memplan.results import Estimate

_ENDS = {
    OutcomeKind.FITS: "",
    OutcomeKind.ALLOCATOR_RETRIES: ", and returns its cache to the driver and asks again where that is not there",
    OutcomeKind.DEVICE_OUT_OF_MEMORY: ", and runs out of memory where that is not there",
}


def fragmentation_notes(estimate: Estimate) -> tuple[str, ...]:
    """Say what PyTorch comes to reserve where samples vary, and what keeps it from that; nothing where it is little."""
    drawn = estimate.drawn
    if drawn is None or not estimate.fragments:
        return ()
    held, kept = format_bytes(drawn.peak_reserved_bytes), format_bytes(drawn.peak_reserved_expandable_bytes)
    grows = f"PyTorch comes to reserve {held} within {drawn.steps} steps on batches drawn at random"
    remedy = f"PYTORCH_ALLOC_CONF=expandable_segments:True keeps that at {kept}"
    return (f"samples vary in size: {grows}{_ENDS[drawn.outcome]}; {remedy}",)
