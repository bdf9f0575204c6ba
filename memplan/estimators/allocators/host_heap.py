"""The C library's heap as a replay: what a stream of CPU tensors keeps resident, beyond the tensors alive.

PyTorch takes every CPU tensor from ``posix_memalign`` with 64-byte alignment (``c10/core/impl/alloc_cpu.cpp``). With
glibc on 64-bit Linux (malloc(3), mallopt(3), and ``malloc/malloc.c`` of glibc 2.36):

- A request that no free block and no room at the heap's end can serve is mapped on its own if it is at least the mmap
  threshold, and unmapped when freed. The threshold starts at 128 KiB and grows to the largest mapping freed so far, at
  most 32 MiB (``M_MMAP_THRESHOLD``); from then on smaller blocks live in the heap.
- The heap serves the smallest free block that fits, with 112 bytes to spare for alignment: a hole of just the right
  size is not used again, but where the heap's blocks begin at multiples of 64. Freed neighbours merge.
- Freed memory goes back to the system only from the heap's end, once twice the threshold is free there
  (``M_TRIM_THRESHOLD``); 128 KiB stay (``M_TOP_PAD``).
- The splinters that alignment leaves go to a cache for small objects (tcache), whence C++ objects take them: they keep
  neighbours from merging. These objects are not in the stream, so that their effect is a constant here: every
  ``pinned_every``-th freed block does not merge with the one below it. With that cache switched off
  (``GLIBC_TUNABLES=glibc.malloc.tcache_count=0``) and no pins, the replay agrees with the C library to 0.4 %.

Against the resident peak of real runs (``benchmarks/host_heap.py``; torch 2.13, two threads, glibc 2.36, 29 to 1382
MiB of tensors), the process before training + ``STEP_OVERHEAD_BYTES`` + this replay was off by -10 to +8 %, median
3 %, in the ten runs the two constants are fitted to, and by -18 to +6 %, median 6 %, in six others. The worst is a
decoder with many small objects between large tensors. Tensors alone in place of the replay are off by up to -26 %.
With ``MALLOC_MMAP_THRESHOLD_=1048576`` the sixteen are off by 1 % in the median and 8 % at most: it is the pinned holes
that cannot be known, and a repeated run differs by 5 % in them.

Not modelled: other allocators (musl, jemalloc, tcmalloc), the arenas of further threads, and what libraries allocate
for themselves.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memplan.errors import TraceError
from memplan.estimators.allocators.segment_pools import ADDRESS_MASK, KEY_SHIFT, FreeBlocks
from memplan.units import KIB, MIB, ceil_div, round_up

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# What a training step adds to the process outside the tensors' heap: pages of libraries that are used for the first
# time, kernels made at run time, objects of Python and C++, oneDNN's own copies. 85 to 110 MiB in the ten runs.
STEP_OVERHEAD_BYTES = 97 * MIB

_UNIT_BYTES = 64
_SPARE_UNITS = 2  # alignment and the smallest block, 112 bytes, in units
_PAGE_UNITS = 4 * KIB // _UNIT_BYTES
_HEADER_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HeapConfig:
    """Settings of glibc's malloc; defaults are glibc's.

    Args:
        mmap_threshold_bytes: requests from here on are mapped on their own where the heap has no room.
        trim_threshold_bytes: the heap's end is returned once this much is free there.
        top_pad_bytes: left at the heap's end when it grows or is returned.
        dynamic: whether both thresholds grow with the mappings that are freed.
        pinned_every: how many freed blocks share one boundary pinned by a small object; None for no pins. Fitted to the
            ten runs: without pins the replay of a training step is up to 17 % too low.
    """

    mmap_threshold_bytes: int = 128 * KIB
    trim_threshold_bytes: int = 128 * KIB
    top_pad_bytes: int = 128 * KIB
    dynamic: bool = True
    pinned_every: int | None = 2

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> HeapConfig:
        """Read ``MALLOC_MMAP_THRESHOLD_`` and its like; any of them fixes the thresholds, as in glibc."""
        texts = {field: environment.get(name, "") for name, field in _VARIABLES.items()}
        given: dict[str, Any] = {field: int(text) for field, text in texts.items() if text.isdigit()}
        return cls(**given, dynamic=not given)


_VARIABLES = {
    "MALLOC_MMAP_THRESHOLD_": "mmap_threshold_bytes",
    "MALLOC_TRIM_THRESHOLD_": "trim_threshold_bytes",
    "MALLOC_TOP_PAD_": "top_pad_bytes",
}
DEFAULT_CONFIG = HeapConfig()
_LARGEST_THRESHOLD_BYTES = 32 * MIB  # DEFAULT_MMAP_THRESHOLD_MAX on 64-bit systems


@dataclass(frozen=True, slots=True, kw_only=True)
class HeapPeaks:
    """What a replay kept resident.

    Args:
        peak_requested_bytes: largest sum of the requests alive.
        peak_resident_bytes: largest sum of the heap, holes included, and of blocks mapped on their own.
        resident_at_end_bytes: what is still resident after the last event.
    """

    peak_requested_bytes: int
    peak_resident_bytes: int
    resident_at_end_bytes: int


def replay_heap(block_ids: Sequence[int], sizes: Sequence[int], *, config: HeapConfig = DEFAULT_CONFIG) -> HeapPeaks:
    """Run events through a fresh heap, in order.

    Args:
        block_ids: which block each event is about.
        sizes: bytes the event allocates for its block; 0 frees the block.
        config: settings of malloc.

    Raises:
        TraceError: a block is freed that is not allocated, or allocated twice.
    """
    heap = _Heap(config)
    live: dict[int, tuple[int | None, int, int]] = {}
    requested = peak_requested = peak_resident = 0
    for index, (block, request) in enumerate(zip(block_ids, sizes, strict=True)):
        if (block in live) is bool(request):
            did = "is allocated twice" if request else "is freed but not allocated"
            raise TraceError(f"block {block} {did} at event {index}")
        if not request:
            address, size, freed = live.pop(block)
            heap.free(address, size)
            requested -= freed
            continue
        live[block] = (*heap.allocate(request), request)
        requested += request
        peak_requested = max(peak_requested, requested)
        peak_resident = max(peak_resident, heap.resident_units)
    return HeapPeaks(
        peak_requested_bytes=peak_requested,
        peak_resident_bytes=peak_resident * _UNIT_BYTES,
        resident_at_end_bytes=heap.resident_units * _UNIT_BYTES,
    )


class _Heap(FreeBlocks):
    """One heap with room to grow at its end, counting in units of 64 bytes; mapped blocks have no address."""

    __slots__ = (
        "_end",
        "_frees",
        "_is_dynamic",
        "_largest",
        "_mapped",
        "_pad",
        "_pinned_every",
        "_threshold",
        "_top",
        "_touched",
        "_trim",
    )

    def __init__(self, config: HeapConfig) -> None:
        super().__init__()
        self._top = 0  # from here to the end nothing is handed out
        self._end = 0
        self._touched = 0  # pages below this have been written to
        self._mapped = 0
        self._frees = 0
        self._is_dynamic = config.dynamic
        self._pinned_every = config.pinned_every
        self._threshold = config.mmap_threshold_bytes // _UNIT_BYTES
        self._trim = config.trim_threshold_bytes // _UNIT_BYTES
        self._pad = config.top_pad_bytes // _UNIT_BYTES
        self._largest = _LARGEST_THRESHOLD_BYTES // _UNIT_BYTES

    @property
    def resident_units(self) -> int:
        return self._touched + self._mapped

    def allocate(self, request_bytes: int) -> tuple[int | None, int]:
        size = ceil_div(request_bytes + _HEADER_BYTES, _UNIT_BYTES)
        position = bisect_left(self.keys, size + _SPARE_UNITS << KEY_SHIFT)
        if position < len(self.keys):
            address, held = self.carve(position, size, 0)
        elif self._end - self._top < size + _SPARE_UNITS and size >= self._threshold:
            return self._map(size)
        else:
            address, held = self._take_from_top(size), size
        self._touched = max(self._touched, address + held)
        return address, held

    def free(self, address: int | None, size: int) -> None:
        if address is None:
            self._unmap(size)
            return
        self._frees += 1
        if self._pinned_every is not None and self._frees % self._pinned_every == 0:
            self._put_above_pin(address, size)
        else:
            self._lower_top(self.put(address, size))
        self._return_top()

    def _map(self, size: int) -> tuple[None, int]:
        pages = round_up(size, _PAGE_UNITS)
        self._mapped += pages
        return None, pages

    def _unmap(self, size: int) -> None:
        self._mapped -= size
        if self._is_dynamic and self._threshold < size <= self._largest:
            self._threshold, self._trim = size, 2 * size

    def _take_from_top(self, size: int) -> int:
        address = self._top
        missing = address + size + _SPARE_UNITS + self._pad - self._end
        if missing > self._pad:
            self._end += round_up(missing, _PAGE_UNITS)
        self._top += size
        return address

    def _put_above_pin(self, address: int, size: int) -> None:
        """Add a free block that merges only with the one above it."""
        if address + size in self.sizes:
            size += self.remove(address + size)
        self.sizes[address] = size
        self.starts_by_end[address + size] = address
        insort(self.keys, size << KEY_SHIFT | address & ADDRESS_MASK)
        self._lower_top(address)

    def _lower_top(self, address: int) -> None:
        if address + self.sizes[address] == self._top:
            self._top -= self.remove(address)

    def _return_top(self) -> None:
        if self._end - self._top >= self._trim:
            self._end = round_up(self._top + self._pad, _PAGE_UNITS)
            self._touched = min(self._touched, self._end)
