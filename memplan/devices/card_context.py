"""The size of a card's CUDA context before it has been measured: estimated from the number of multiprocessors.

The driver sets local memory aside for every thread that a card can hold at once: multiprocessors x threads of each x
bytes of a thread (NVIDIA's forum, "Local memory management", 289339). That makes the context of a large card several
times that of a small one. The two constants are those of the line through the ends of what is published for lazy
module loading, the default since CUDA 12.2:

- RTX 3060 and 4060, 28 and 24 multiprocessors: 117 to 139 MiB (framework memory of the xMem study, CUDA 12);
- H200, 132 multiprocessors: 0.50 GiB (free 139.30 of 139.80 GiB before any kernel, sgl-project/sglang pull request
  11716).

Between them lie an A100 with 354 MiB or more (the xMem study; the line says 434), and 274, about 300 and 400 MiB on
cards that are not named (pytorch/pytorch pull request 86509, issues 107667 and 109888). Not counted: what CUDA before
11.7 or ``CUDA_MODULE_LOADING=EAGER`` loads besides, 0.5 to 1 GiB, and communication libraries.
"""

from __future__ import annotations

from memplan.units import KIB, MIB

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": maximum resident threads of a
# multiprocessor. What is not listed holds 2048.
_THREADS_PER_SM = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}
_MOST_THREADS_PER_SM = 2048

_FIXED_BYTES = 56 * MIB
_BYTES_PER_THREAD = 7 * KIB // 4
# Every published figure of a named card lies within this share of the line.
_SPREAD = 0.25

# Of a card of which only the memory is known.
_UNKNOWN_CARD_BYTES = 300 * MIB
_UNKNOWN_CARD_RANGE_BYTES = (115 * MIB, 520 * MIB)


def threads_per_multiprocessor(compute_capability: tuple[int, int]) -> int:
    """Return how many threads one multiprocessor of a card holds at once."""
    return _THREADS_PER_SM.get(compute_capability, _MOST_THREADS_PER_SM)


def context_bytes(compute_capability: tuple[int, int] | None, sm_count: int | None) -> int:
    """Return the usual CUDA context with the libraries of a training step, outside the caching allocator.

    Args:
        compute_capability: of the card; None where it is not known.
        sm_count: streaming multiprocessors; None where they are not known.
    """
    if compute_capability is None or sm_count is None:
        return _UNKNOWN_CARD_BYTES
    threads = sm_count * threads_per_multiprocessor(compute_capability)
    return _FIXED_BYTES + threads * _BYTES_PER_THREAD


def context_range_bytes(compute_capability: tuple[int, int] | None, sm_count: int | None) -> tuple[int, int]:
    """Return the least and the most that the context of such a card may take, by published figures."""
    if compute_capability is None or sm_count is None:
        return _UNKNOWN_CARD_RANGE_BYTES
    usual_bytes = context_bytes(compute_capability, sm_count)
    return round(usual_bytes * (1 - _SPREAD)), round(usual_bytes * (1 + _SPREAD))
