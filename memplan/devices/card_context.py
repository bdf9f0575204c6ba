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

Of Hopper's cards whole trainings were measured (``benchmarks/truth``: an H100 with 132 multiprocessors, driver
580.159, CUDA 13.0, PyTorch 2.11, 91 trainings): 619 MiB with the first tensor, 132 MiB more, which is half a KiB for
every thread, once cuBLAS multiplies, and 16 to 24 MiB of kernels. The median is 767 MiB; trainings that only convolve
took 639 to 643, so that a step without a product is counted without that half KiB.
"""

from __future__ import annotations

import math

from memplan.units import KIB, MIB

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": maximum resident threads of a
# multiprocessor. What is not listed holds 2048.
_THREADS_PER_SM = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}
_MOST_THREADS_PER_SM = 2048

_FIXED_BYTES = 56 * MIB
_BYTES_PER_THREAD = 7 * KIB // 4
# Every published figure of a named card lies within this share of the line.
_SPREAD = 0.25

# On Hopper 767 MiB for 132 multiprocessors. As shares of that, rounded outwards, the least that was published (0.50 GiB
# of an H200 before any kernel) and the most that was measured (773 MiB).
_HOPPER = (9, 0)
_HOPPER_BYTES_PER_THREAD = math.ceil((767 * MIB - _FIXED_BYTES) / (132 * _MOST_THREADS_PER_SM))
_HOPPER_RANGE = (0.65, 1.02)
_HOPPER_BYTES_PER_THREAD_OF_PRODUCTS = KIB // 2  # of the above: what cuBLAS adds with the first product

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
    of_thread = _HOPPER_BYTES_PER_THREAD if compute_capability == _HOPPER else _BYTES_PER_THREAD
    return _FIXED_BYTES + threads * of_thread


def context_of_products_bytes(compute_capability: tuple[int, int] | None, sm_count: int | None) -> int:
    """Return how much smaller the context of a step is that multiplies no matrices; known of Hopper alone, else 0."""
    if compute_capability != _HOPPER or sm_count is None:
        return 0
    return sm_count * _MOST_THREADS_PER_SM * _HOPPER_BYTES_PER_THREAD_OF_PRODUCTS


def context_range_bytes(compute_capability: tuple[int, int] | None, sm_count: int | None) -> tuple[int, int]:
    """Return the least and the most that the context of such a card may take, by what was published and measured."""
    if compute_capability is None or sm_count is None:
        return _UNKNOWN_CARD_RANGE_BYTES
    usual_bytes = context_bytes(compute_capability, sm_count)
    least, most = _HOPPER_RANGE if compute_capability == _HOPPER else (1 - _SPREAD, 1 + _SPREAD)
    return round(usual_bytes * least), round(usual_bytes * most)
