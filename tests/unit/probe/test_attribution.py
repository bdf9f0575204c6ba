"""What a peak consists of, from a handful of events whose sums can be added up in the head."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memplan.probe.attribution import (
    AttributedPeak,
    ForwardSpan,
    KnownBlocks,
    MemoryEvent,
    ResidentBlock,
    attribute_peak,
)
from memplan.results import Component


def events(*changes: tuple[int, int]) -> list[MemoryEvent]:
    """Events at positions 10, 20, ... from pairs of address and size."""
    return [
        MemoryEvent(position=10 * place, address=address, size_bytes=size)
        for place, (address, size) in enumerate(changes, 1)
    ]


def parts(peak: AttributedPeak) -> dict[str, int]:
    return {component.name.lower(): size for component, size in peak.components.items() if size}


WEIGHTS = ResidentBlock(address=1, size_bytes=100, component=Component.PARAMETERS)


def test_without_events_the_peak_is_what_was_resident() -> None:
    peak = attribute_peak([WEIGHTS], [])
    assert (peak.allocated_bytes, peak.position, parts(peak)) == (100, None, {"parameters": 100})


def test_the_peak_is_the_largest_sum_and_not_the_sum_of_the_largest() -> None:
    peak = attribute_peak([WEIGHTS], events((2, 50), (2, -50), (3, 60), (3, -60)))
    assert (peak.allocated_bytes, peak.position) == (160, 30)
    assert parts(peak) == {"parameters": 100, "temporaries": 60}


def test_what_the_forward_pass_leaves_is_an_activation_even_while_it_is_being_made() -> None:
    stream = events((2, 50), (3, 70), (3, -70), (4, 10), (2, -50))
    peak = attribute_peak([], stream, forwards=[ForwardSpan(start=5, end=45)])
    assert peak.position == 20
    assert parts(peak) == {"activations": 50, "temporaries": 70}


def test_a_block_is_known_by_its_address_only_while_it_lives() -> None:
    stream = events((2, 50), (2, -50), (2, 30))
    peak = attribute_peak([], stream, known=[KnownBlocks(position=35, components={2: Component.GRADIENTS})])
    assert parts(peak) == {"temporaries": 50}


def test_a_gradient_seen_after_the_backward_pass_was_one_at_the_peak_too() -> None:
    stream = events((2, 50), (3, 20), (2, -50))
    peak = attribute_peak([], stream, known=[KnownBlocks(position=35, components={3: Component.GRADIENTS})])
    assert parts(peak) == {"temporaries": 50, "gradients": 20}


def test_knowledge_counts_more_than_the_forward_pass() -> None:
    peak = attribute_peak(
        [],
        events((2, 50), (3, 1)),
        known=[KnownBlocks(position=15, components={2: Component.INPUTS})],
        forwards=[ForwardSpan(start=5, end=25)],
    )
    assert parts(peak) == {"inputs": 50, "activations": 1}


def test_a_resident_block_that_is_freed_is_no_longer_counted() -> None:
    peak = attribute_peak([WEIGHTS], events((1, -100), (2, 90)))
    assert (peak.allocated_bytes, parts(peak)) == (100, {"parameters": 100})


def test_the_free_of_an_unknown_block_changes_nothing() -> None:
    assert attribute_peak([WEIGHTS], events((9, -500), (2, 10))).allocated_bytes == 110


def test_an_address_handed_out_again_ends_the_block_before() -> None:
    assert attribute_peak([], events((2, 50), (2, 30))).allocated_bytes == 50


def test_events_may_come_in_any_order() -> None:
    stream = events((2, 50), (2, -50), (3, 60))
    assert attribute_peak([], reversed(stream)) == attribute_peak([], stream)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(-1, 100))), st.integers(0, 50), st.integers(0, 50))
def test_components_add_up_to_the_largest_running_sum(changes: list[tuple[int, int]], start: int, length: int) -> None:
    stream = events(*[(address, size or 1) for address, size in changes])
    peak = attribute_peak([WEIGHTS], stream, forwards=[ForwardSpan(start=10 * start, end=10 * (start + length))])
    live, largest = {1: 100}, 100
    for event in stream:
        live.pop(event.address, None)
        if event.size_bytes > 0:
            live[event.address] = event.size_bytes
        largest = max(largest, sum(live.values()))
    assert peak.allocated_bytes == sum(peak.components.values()) == largest
