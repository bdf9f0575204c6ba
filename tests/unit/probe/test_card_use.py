"""What the driver says of a card's use, with made-up cards behind NVML."""

from __future__ import annotations

import os
from typing import Any

import pynvml
import pytest
import torch

from memplan.probe.card_use import CardUse
from memplan.units import GIB, MIB
from tests.fake_driver import FakeCard


@pytest.fixture
def reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's allocator holds 1 GiB of a card that is not there."""
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: GIB)


def test_the_context_is_what_the_driver_charges_the_process_beyond_its_segments(
    install: Any, on_host: None, reserved: None
) -> None:
    install(FakeCard(computing={os.getpid(): GIB + 400 * MIB}))
    card = CardUse(0)
    assert card.context_bytes(others_bytes=0) == 400 * MIB
    assert not card.notes
    assert card.has_own_context


def test_in_a_container_the_context_is_the_growth_of_the_cards_use_and_that_is_said(
    install: Any, in_container: None, reserved: None
) -> None:
    install(FakeCard(total=24 * GIB, reserved=0, free=22 * GIB, computing={os.getpid(): 1}))
    card = CardUse(0)
    assert card.context_bytes(others_bytes=500 * MIB) == 2 * GIB - 500 * MIB - GIB
    assert not card.has_own_context
    (note,) = card.notes
    assert note.startswith(
        "the context is taken from the growth of the whole card's use: this process runs in a process-id"
    )


def test_a_slice_of_a_card_that_lists_no_processes_degrades_in_the_same_way(
    install: Any, on_host: None, reserved: None
) -> None:
    refused = int(pynvml.NVML_ERROR_NOT_SUPPORTED)
    calls = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3")
    install(FakeCard(uuid="MIG-1", total=10 * GIB, reserved=0, free=8 * GIB, fails=dict.fromkeys(calls, refused)))
    card = CardUse(0)
    assert card.context_bytes(others_bytes=0) == GIB
    (note,) = card.notes
    assert "the driver does not list processes here (WSL, MIG or missing permission)" in note
