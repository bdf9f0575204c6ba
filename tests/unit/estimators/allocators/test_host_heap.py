"""The C library's heap, one rule at a time, and against the C library itself."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.errors import TraceError
from memplan.estimators.allocators.host_heap import HeapConfig, HeapPeaks, replay_heap
from memplan.units import KIB, MIB
from tests.allocation_events import event_sequences

IN_HEAP = HeapConfig(mmap_threshold_bytes=1024 * MIB, trim_threshold_bytes=1024 * MIB, top_pad_bytes=0, dynamic=False)
PAGE = 4 * KIB


def run(*events: tuple[str, int], config: HeapConfig | None = None) -> HeapPeaks:
    """Replay ``(name, bytes)`` pairs; 0 bytes frees the block of that name."""
    names = sorted({name for name, _ in events})
    return replay_heap(
        [names.index(name) for name, _ in events], [size for _, size in events], config=config or HeapConfig()
    )


def test_nothing_allocated_keeps_nothing() -> None:
    assert run() == HeapPeaks(peak_requested_bytes=0, peak_resident_bytes=0, resident_at_end_bytes=0)


def test_a_large_block_is_mapped_on_its_own_and_returned_when_freed() -> None:
    peaks = run(("a", 64 * MIB), ("a", 0))
    assert (peaks.peak_requested_bytes, peaks.peak_resident_bytes) == (64 * MIB, 64 * MIB + PAGE)
    assert peaks.resident_at_end_bytes == 0


def test_a_freed_mapping_moves_later_blocks_of_its_size_into_the_heap_where_they_stay() -> None:
    peaks = run(("a", 8 * MIB), ("a", 0), ("b", 4 * MIB), ("b", 0))
    assert 4 * MIB < peaks.resident_at_end_bytes < 4 * MIB + 2 * PAGE


def test_blocks_above_32_mib_never_move_into_the_heap() -> None:
    peaks = run(("a", 33 * MIB), ("a", 0), ("b", 33 * MIB), ("b", 0))
    assert peaks.resident_at_end_bytes == 0


def test_the_heaps_end_is_returned_once_twice_the_threshold_is_free() -> None:
    grown = [("a", 4 * MIB), ("a", 0)]  # threshold 4 MiB, so that 8 MiB may stay
    kept = run(*grown, ("b", 3 * MIB), ("c", 3 * MIB), ("c", 0), ("b", 0))
    assert kept.resident_at_end_bytes > 6 * MIB
    returned = run(*grown, ("b", 3 * MIB), ("c", 3 * MIB), ("d", 3 * MIB), ("d", 0), ("c", 0), ("b", 0))
    assert returned.resident_at_end_bytes < MIB


def test_thresholds_that_are_set_do_not_grow() -> None:
    config = HeapConfig.from_environment({"MALLOC_MMAP_THRESHOLD_": str(MIB)})
    assert config == HeapConfig(mmap_threshold_bytes=MIB, dynamic=False)
    peaks = run(("a", 8 * MIB), ("a", 0), ("b", 4 * MIB), ("b", 0), config=config)
    assert peaks.resident_at_end_bytes == 0


def test_without_variables_the_settings_are_the_defaults() -> None:
    assert HeapConfig.from_environment({"MALLOC_ARENA_MAX": "2"}) == HeapConfig()


def test_a_hole_serves_a_smaller_block() -> None:
    peaks = run(("a", MIB), ("b", MIB), ("a", 0), ("c", MIB // 2), config=IN_HEAP)
    assert peaks.peak_resident_bytes < 2 * MIB + PAGE


def test_a_hole_of_just_the_right_size_is_not_used_again() -> None:
    peaks = run(("a", MIB), ("b", MIB), ("a", 0), ("c", MIB), config=IN_HEAP)
    assert peaks.peak_resident_bytes > 3 * MIB


def test_the_smallest_hole_that_fits_is_used() -> None:
    converted = [("a", 4 * MIB), ("x", 64), ("b", 2 * MIB), ("y", 64), ("a", 0), ("b", 0)]
    peaks = run(*converted, ("c", MIB), ("d", 3 * MIB), config=IN_HEAP)
    assert peaks.peak_resident_bytes < 6 * MIB + PAGE


def test_freed_neighbours_merge() -> None:
    converted = [("a", MIB), ("b", MIB), ("x", 64), ("b", 0), ("a", 0)]
    peaks = run(*converted, ("c", 2 * MIB - KIB), config=IN_HEAP)
    assert peaks.peak_resident_bytes < 2 * MIB + PAGE


def test_a_pinned_boundary_keeps_freed_neighbours_apart() -> None:
    converted = [("a", MIB), ("b", MIB), ("x", 64), ("a", 0), ("b", 0)]
    assert run(*converted, ("c", 2 * MIB - KIB), config=IN_HEAP).peak_resident_bytes > 3 * MIB
    unpinned = replace(IN_HEAP, pinned_every=None)
    assert run(*converted, ("c", 2 * MIB - KIB), config=unpinned).peak_resident_bytes < 2 * MIB + PAGE


def test_events_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(TraceError, match="block 3 is freed but not allocated at event 0"):
        replay_heap([3], [0])
    with pytest.raises(TraceError, match="block 3 is allocated twice at event 1"):
        replay_heap([3, 3], [64, 64])


@settings(max_examples=150, deadline=None)
@given(event_sequences(st.one_of(st.integers(1, 4 * KIB), st.integers(1, 40 * MIB)), most=50), st.booleans())
def test_what_is_alive_is_resident_before_and_after(events: list[tuple[int, int]], dynamic: bool) -> None:
    blocks, sizes = zip(*events, strict=True)
    peaks = replay_heap(blocks, sizes, config=HeapConfig(dynamic=dynamic))
    freed = {block for block, size in events if size == 0}
    alive_at_end = sum(size for block, size in events if block not in freed)
    assert peaks.peak_requested_bytes <= peaks.peak_resident_bytes
    assert alive_at_end <= peaks.resident_at_end_bytes <= peaks.peak_resident_bytes


# From the filling on, Python makes only small objects, which it keeps outside this heap. Where blocks begin
# at multiples of 64, splinters let a hole fit a block of its own size again; the replay knows the other beginnings.
C_LIBRARY_RUN = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None)
libc.posix_memalign.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.sbrk.restype = ctypes.c_void_p
events = json.load(sys.stdin)
addresses = (ctypes.c_void_p * len(events))()
statm, text = os.open("/proc/self/statm", os.O_RDONLY), bytearray(128)
def resident():  # anonymous pages alone: the system may take back pages of files meanwhile
    os.preadv(statm, [text], 0)
    _, pages, of_files, *_ = text.split()
    return (int(pages) - int(of_files)) * os.sysconf("SC_PAGE_SIZE")
def take(block, size):
    slot = ctypes.cast(ctypes.byref(addresses, 8 * block), ctypes.POINTER(ctypes.c_void_p))
    libc.posix_memalign(slot, 64, size)
end, fill = libc.sbrk(0), 60 * 1024  # smaller than every block of the run
while libc.sbrk(0) == end:  # what the interpreter has free shall serve no block
    take(0, fill)
libc.malloc.argtypes = libc.malloc_usable_size.argtypes = [ctypes.c_size_t]
left = libc.sbrk(0) - addresses[0] - libc.malloc_usable_size(addresses[0]) + 8
libc.malloc(left - 144)  # nor what is left at the heap's end, which comes to lie 32 bytes beside a multiple of 64
peak = before = resident()
for block, size in events:
    if size:
        take(block, size)
        ctypes.memset(addresses[block], 1, size)
        peak = max(peak, resident())
    else:
        libc.free(addresses[block])
print(peak - before)
"""


def steps_of_allocations(seed: int) -> list[tuple[int, int]]:
    """Three rounds of sixty blocks of six sizes, most of them freed in reverse at the end of the round."""
    choice = random.Random(seed)  # noqa: S311 - a reproducible sequence, no secret
    sizes = [2 ** choice.randint(16, 24) for _ in range(6)]
    events: list[tuple[int, int]] = []
    live: list[int] = []
    for _ in range(3):
        for _ in range(60):
            live.append(len(events))
            events.append((live[-1], choice.choice(sizes)))
            if choice.random() < 0.4:
                events.append((live.pop(choice.randrange(max(0, len(live) - 3), len(live))), 0))
        events += [(block, 0) for block in reversed(live[5:])]
        del live[5:]
    return events


@pytest.mark.skipif(
    sys.platform != "linux" or "CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="needs the GNU C library"
)
@pytest.mark.parametrize("seed", [1, 3, 5])
def test_the_replay_agrees_with_the_c_library(seed: int) -> None:
    events = steps_of_allocations(seed)
    environment = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}  # or splinters would pin what they lie between
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", C_LIBRARY_RUN],
        input=json.dumps(events), capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    blocks, sizes = zip(*events, strict=True)
    peaks = replay_heap(blocks, sizes, config=HeapConfig(pinned_every=None))
    assert peaks.peak_resident_bytes == pytest.approx(int(ended.stdout), rel=0.005)
