"""The predicted timeline as a memory snapshot, read with PyTorch's own visualiser."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.cuda import _memory_viz

from memplan.errors import TraceError
from memplan.estimators.allocators.allocator_config import AllocatorConfig
from memplan.estimators.allocators.caching_allocator import replay
from memplan.estimators.allocators.snapshot import predicted_snapshot, snapshot_bytes
from memplan.units import MIB
from tests.allocation_events import event_sequences

LABELS = [("aten::convolution", "layer1.conv", "forward"), ("aten::relu", "layer1", "forward"), ("aten::add", "", "")]
EVENTS = ([0, 1, 0, 2], [15 * MIB, 8 * MIB, 0, 512])
EXPANDABLE = AllocatorConfig(expandable_segments=True)


def actions(snapshot: dict[str, Any]) -> list[tuple[str, int]]:
    return [(entry["action"], entry["size"]) for entry in snapshot["device_traces"][0]]


def test_every_action_of_the_allocator_is_in_the_trace() -> None:
    assert actions(predicted_snapshot(*EVENTS, LABELS)) == [
        ("segment_alloc", 16 * MIB),
        ("alloc", 15 * MIB),
        ("segment_alloc", 20 * MIB),
        ("alloc", 8 * MIB),
        ("free_requested", 15 * MIB),
        ("free_completed", 15 * MIB),
        ("segment_alloc", 2 * MIB),
        ("alloc", 512),
    ]


def test_expandable_segments_are_mapped_and_are_one_segment_each() -> None:
    snapshot = predicted_snapshot(*EVENTS, LABELS, config=EXPANDABLE)
    assert [entry for entry in actions(snapshot) if entry[0] == "segment_map"] == [
        ("segment_map", 20 * MIB),
        ("segment_map", 20 * MIB),
        ("segment_map", 2 * MIB),
    ]
    assert [(each["segment_type"], each["total_size"]) for each in snapshot["segments"]] == [
        ("small", 2 * MIB),
        ("large", 40 * MIB),
    ]


def test_labels_are_the_frames_of_their_block() -> None:
    snapshot = predicted_snapshot(*EVENTS, LABELS)
    names = [frame["name"] for frame in snapshot["device_traces"][0][1]["frames"]]
    assert names == ["aten::convolution", "layer1.conv", "forward"]


def test_segments_that_are_returned_are_in_the_trace_and_no_longer_held() -> None:
    snapshot = predicted_snapshot([0, 0, 1], [20 * MIB, 0, 30 * MIB], LABELS, cache_returns={2})
    assert ("segment_free", 20 * MIB) in actions(snapshot)
    assert [each["total_size"] for each in snapshot["segments"]] == [30 * MIB]


def test_entries_name_the_stream_and_the_pool_of_what_they_are_about() -> None:
    events = ([0, 0, 1, 2], [20 * MIB, 0, 30 * MIB, 2 * MIB])  # the first is returned as the second is made
    snapshot = predicted_snapshot(*events, LABELS, cache_returns={2}, side_streams={1: 1}, graph_streams={1})
    entries = snapshot["device_traces"][0]
    found = [(each["action"], each["stream"], each["pool_id"]) for each in entries if "segment" in each["action"]]
    own, of_graphs = (0, (0, 0)), (1, (0, 1))
    assert found == [
        ("segment_alloc", *own),
        ("segment_free", *own),
        ("segment_alloc", *of_graphs),
        ("segment_alloc", *own),
    ]
    held = {(each["stream"], each["segment_pool_id"]) for each in snapshot["segments"]}
    assert held == {own, of_graphs}


@pytest.mark.parametrize("config", [AllocatorConfig(), EXPANDABLE])
def test_the_visualiser_reads_the_file(config: AllocatorConfig) -> None:
    snapshot = pickle.loads(snapshot_bytes(predicted_snapshot(*EVENTS, LABELS, config=config)))
    assert "total_allocated: 8.0MiB" in _memory_viz.segsum(snapshot)
    assert "15.0MiB" in _memory_viz.trace(snapshot)
    assert "aten::relu" in _memory_viz.memory(snapshot, format_flamegraph=str)
    assert "Active Memory Timeline" in _memory_viz.trace_plot(snapshot)
    assert "Allocator State History" in _memory_viz.segment_plot(snapshot)


def test_a_block_that_is_not_allocated_cannot_be_freed() -> None:
    with pytest.raises(TraceError, match="event 0 frees block 1, which is not allocated"):
        predicted_snapshot([1], [0], LABELS)


@settings(max_examples=60, deadline=None)
@given(
    event_sequences(st.integers(1, 40 * MIB), most=30),
    st.booleans(),
    st.sets(st.integers(0, 30), max_size=3),
)
def test_the_segments_add_up_to_what_the_replay_reserves(
    events: list[tuple[int, int]], expandable: bool, returns: set[int]
) -> None:
    blocks, sizes = zip(*events, strict=True)
    config = AllocatorConfig(expandable_segments=expandable)
    snapshot = predicted_snapshot(blocks, sizes, [()] * len(events), config=config, cache_returns=returns)
    held = peak = 0
    for action, size in actions(snapshot):
        held += size if action in ("segment_alloc", "segment_map") else 0
        held -= size if action in ("segment_free", "segment_unmap") else 0
        peak = max(peak, held)
    replayed = replay(blocks, sizes, config=config, cache_returns=returns)
    assert peak == replayed.peak_reserved_bytes
    assert held == sum(each["total_size"] for each in snapshot["segments"])
    for segment in snapshot["segments"]:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
