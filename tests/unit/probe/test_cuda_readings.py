"""What is made of a memory snapshot of a card; snapshots as torch.cuda.memory._snapshot returns them."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from memplan.devices.cards import DeviceKind, DeviceSpec
from memplan.probe import cuda_readings
from memplan.probe.attribution import AttributedPeak, ForwardSpan, MemoryEvent, ResidentBlock, attribute_peak
from memplan.probe.cuda_readings import CudaReadings, breakdown_of, mark_position, memory_events, resident_blocks
from memplan.results import Component
from memplan.units import GIB, MIB
from tests.fake_cuda import FakeCuda, FakeMemory
from tests.fake_driver import FakeCard

SEGMENTS: list[dict[str, Any]] = [
    {
        "device": 0,
        "address": 0x1000,
        "total_size": 2 << 20,
        "segment_type": "small",
        "blocks": [
            {"address": 0x1000, "size": 512, "requested_size": 400, "state": "active_allocated"},
            {"address": 0x1200, "size": 512, "requested_size": 100, "state": "active_pending_free"},
            {"address": 0x1400, "size": 1024, "requested_size": 0, "state": "inactive"},
        ],
    },
    {
        "device": 0,
        "address": 0x9000,
        "total_size": 20 << 20,
        "segment_type": "large",
        "blocks": [
            {"address": 0x9000, "size": 8519680, "requested_size": 8519680, "state": "active_allocated"},
            {"address": 0xA000, "size": 1024, "requested_size": 1000, "state": "active_allocated"},
        ],
    },
]

HISTORY: list[dict[str, Any]] = [
    {"action": "segment_alloc", "addr": 0x1000, "size": 2 << 20, "stream": 0, "time_us": 1},
    {"action": "alloc", "addr": 0x2000, "size": 300, "stream": 0, "time_us": 2},
    {"action": "alloc", "addr": 0x3000, "size": 50, "stream": 0, "time_us": 2},
    {"action": "free_requested", "addr": 0x3000, "size": 50, "stream": 0, "time_us": 3},
    {"action": "free_completed", "addr": 0x3000, "size": 50, "stream": 0, "time_us": 3},
    {"action": "free_requested", "addr": 0x2000, "size": 300, "stream": 0, "time_us": 4},
    {"action": "free_completed", "addr": 0x2000, "size": 300, "stream": 0, "time_us": 4},
]


def test_live_blocks_are_weights_own_tensors_or_a_librarys_workspace() -> None:
    known = {0x1000: Component.PARAMETERS}
    visible = {0x1000: 400, 0xA000: 1000}
    assert resident_blocks(SEGMENTS, known, visible) == [
        ResidentBlock(address=0x1000, size_bytes=400, component=Component.PARAMETERS),
        ResidentBlock(address=0x9000, size_bytes=8519680, component=Component.WORKSPACES),
        ResidentBlock(address=0xA000, size_bytes=1000, component=Component.TEMPORARIES),
    ]


def test_a_free_counts_when_it_is_requested() -> None:
    assert list(memory_events(HISTORY, 0)) == [
        MemoryEvent(position=2, address=0x2000, size_bytes=300),
        MemoryEvent(position=4, address=0x3000, size_bytes=50),
        MemoryEvent(position=6, address=0x3000, size_bytes=-50),
        MemoryEvent(position=10, address=0x2000, size_bytes=-300),
    ]


def test_the_history_before_the_step_is_left_out() -> None:
    assert [event.position for event in memory_events(HISTORY, 3)] == [6, 10]


def test_a_mark_falls_between_the_entries_before_and_after_it() -> None:
    forward = ForwardSpan(start=mark_position(1), end=mark_position(4))
    peak = attribute_peak([], memory_events(HISTORY, 0), forwards=[forward])
    assert peak.components[Component.ACTIVATIONS] == 300
    assert peak.components[Component.TEMPORARIES] == 50


def test_components_add_up_to_the_process_peak() -> None:
    peak = AttributedPeak(allocated_bytes=30, components={Component.PARAMETERS: 30}, position=None)
    breakdown = breakdown_of(peak, reserved_bytes=100, process_bytes=400)
    assert (breakdown.parameters, breakdown.allocator_slack, breakdown.context) == (30, 70, 300)
    assert breakdown.total_bytes == 400


CARD = DeviceSpec(name="card", kind=DeviceKind.CUDA, total_bytes=24 * GIB, live_index=0)


@pytest.fixture
def trial(install: Any, on_host: None, monkeypatch: pytest.MonkeyPatch) -> tuple[CudaReadings, FakeCuda, FakeCard]:
    """A trial with 8 GiB of a card of 16, on which others hold 1 GiB; its context takes 400 MiB from then on."""
    driver = FakeCard(total=16 * GIB, reserved=0, free=15 * GIB)
    install(driver)
    cuda = FakeCuda([FakeMemory(total=16 * GIB)]).install(monkeypatch)

    def toy_step(device: torch.device) -> None:
        cuda.cards[0].reserved = 20 * MIB
        driver.computing[os.getpid()] = 420 * MIB
        driver.free -= 420 * MIB

    def give_workspaces_back() -> None:
        assert cuda.cards[0].reserved, "the cache is emptied after what it can give back"

    monkeypatch.setattr(cuda_readings, "_take_a_toy_step", toy_step)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", give_workspaces_back, raising=False)
    return CudaReadings(CARD, 8 * GIB), cuda, driver


def test_the_allocator_may_take_what_context_and_neighbours_leave_of_the_budget(
    trial: tuple[CudaReadings, FakeCuda, FakeCard],
) -> None:
    readings, cuda, _ = trial
    assert readings.start() == torch.device("cuda", 0)
    assert cuda.cards[0].share == (8 * GIB - GIB - 400 * MIB) / (16 * GIB)
    readings.release_limits()
    assert cuda.cards[0].share == 1.0


def test_the_peaks_of_a_trial_leave_out_the_toy_step_and_count_all_that_came_later(
    trial: tuple[CudaReadings, FakeCuda, FakeCard],
) -> None:
    readings, cuda, driver = trial
    readings.start()
    readings.before_building()
    card = cuda.cards[0]
    assert (card.reserved, card.reserved_peak) == (0, 0)
    card.reserved, card.reserved_peak, card.allocated_peak = 2 * GIB, 3 * GIB, 2 * GIB  # the cache was emptied once
    driver.computing[os.getpid()] = 2 * GIB + 500 * MIB  # libraries came
    driver.free = 16 * GIB - (1 * GIB + 100 * MIB) - (2 * GIB + 500 * MIB)  # and neighbours grew
    peaks = readings.read_peaks()
    assert (peaks.allocated_bytes, peaks.reserved_bytes) == (2 * GIB, 3 * GIB)
    assert peaks.process_bytes == 3 * GIB + 500 * MIB
    assert peaks.device_bytes == peaks.process_bytes + GIB + 100 * MIB
    assert peaks.breakdown.total_bytes == peaks.process_bytes
    assert peaks.breakdown.context == 500 * MIB


@pytest.mark.parametrize(("searches", "peak", "retries"), [(True, 3 * GIB, 0), (False, 7 * GIB, 2)])
def test_what_the_search_for_algorithms_held_is_no_peak_of_the_training(
    trial: tuple[CudaReadings, FakeCuda, FakeCard],
    monkeypatch: pytest.MonkeyPatch,
    searches: bool,
    peak: int,
    retries: int,
) -> None:
    readings, cuda, driver = trial
    readings.start()
    readings.before_building()
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", searches)
    card = cuda.cards[0]
    card.reserved, card.reserved_peak, card.allocated_peak, card.alloc_retries = 2 * GIB, 7 * GIB, 6 * GIB, 2
    driver.computing[os.getpid()] = 2 * GIB + 400 * MIB
    readings.first_step_ended()
    card.reserved_peak = max(card.reserved_peak, 3 * GIB)  # the steps that follow
    peaks = readings.read_peaks()
    assert (peaks.reserved_bytes, peaks.alloc_retries) == (peak, retries)
    assert ["held up to 7.00 GiB in the first step" in note for note in peaks.notes] == [True] * searches


@pytest.mark.parametrize(("reserved", "is_full"), [(5 * GIB, False), (6 * GIB, True)])
def test_memory_is_full_near_the_allocators_cap(
    trial: tuple[CudaReadings, FakeCuda, FakeCard], reserved: int, is_full: bool
) -> None:
    readings, cuda, _ = trial
    readings.start()
    cuda.cards[0].reserved_peak = reserved
    assert readings.memory_is_full() is is_full
