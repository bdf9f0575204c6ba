"""What Inductor asks a card before it makes kernels for it."""

from __future__ import annotations

from dataclasses import dataclass

from memplan.devices.card_context import threads_per_multiprocessor
from memplan.units import MIB

# The largest of a card of each compute capability: NVIDIA's whitepapers on V100, A100, GA102, AD102 (RTX 4090), H100
# and GB202 (RTX 5090). Others have what the nearest capability below has.
_CACHE_BYTES = {
    (7, 0): 6 * MIB,
    (8, 0): 40 * MIB,
    (8, 6): 6 * MIB,
    (8, 9): 72 * MIB,
    (9, 0): 50 * MIB,
    (12, 0): 96 * MIB,
}
_PRESUMED_SMS = 108  # an A100's, of a card of which only the memory is known


@dataclass(frozen=True, slots=True, kw_only=True)
class InductorCard:
    """A card, as far as Inductor's choices depend on it.

    Args:
        capability: compute capability.
        sm_count: multiprocessors.
        threads_per_sm: threads that one multiprocessor holds at once.
        cache_bytes: size of its second cache.
    """

    capability: tuple[int, int]
    sm_count: int
    threads_per_sm: int
    cache_bytes: int


def inductor_card(capability: tuple[int, int], sm_count: int | None) -> InductorCard:
    """Return a card of a compute capability; where its multiprocessors are not known, it has an A100's."""
    nearest = max((each for each in _CACHE_BYTES if each <= capability), default=min(_CACHE_BYTES))
    return InductorCard(
        capability=capability,
        sm_count=_PRESUMED_SMS if sm_count is None else sm_count,
        threads_per_sm=threads_per_multiprocessor(capability),
        cache_bytes=_CACHE_BYTES[nearest],
    )
