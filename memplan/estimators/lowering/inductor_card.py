"""What Inductor asks a card before it makes kernels for it."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class InductorCard:
    """A card, as far as Inductor's choices depend on it.

    Args:
        sm_count: multiprocessors; None where only the card's memory is known.
        cache_bytes: size of its second cache.
    """

    sm_count: int | None
    cache_bytes: int


def inductor_card(capability: tuple[int, int], sm_count: int | None) -> InductorCard:
    """Return a card of a compute capability."""
    nearest = max((each for each in _CACHE_BYTES if each <= capability), default=min(_CACHE_BYTES))
    return InductorCard(sm_count=sm_count, cache_bytes=_CACHE_BYTES[nearest])
