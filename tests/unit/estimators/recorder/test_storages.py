"""Blocks of storages, and what takes the place of one that is freed."""

from __future__ import annotations

import pytest
import torch

from memplan.estimators.recorder.recording import Recording
from memplan.estimators.recorder.storages import StorageLedger
from memplan.results import Component


@pytest.mark.parametrize(
    ("second_size", "events"),
    [
        pytest.param(4, [(0, True), (0, False)], id="as large"),
        pytest.param(8, [(0, True), (1, True), (0, False), (1, False)], id="of another size"),
    ],
)
def test_a_storage_takes_the_block_of_an_equally_large_one_that_is_freed_for_it(
    second_size: int, events: list[tuple[int, bool]]
) -> None:
    recording = Recording(micro_batch_size=1)
    ledger = StorageLedger(recording)
    first = torch.empty(4)
    ledger.track(first, Component.TEMPORARIES, module="", operator="first")
    with ledger.handing_over():
        del first
        second = torch.empty(second_size)
        ledger.track(second, Component.TEMPORARIES, module="", operator="second")
    assert len(ledger.live_blocks()) == 1
    del second
    assert list(zip(recording.event_blocks, recording.event_allocates, strict=True)) == events
    assert ledger.live_blocks() == set()
