"""Allocations and frees as hypothesis draws them, for the models of allocators."""

from __future__ import annotations

from hypothesis import strategies as st

Events = list[tuple[int, int]]  # blocks with their bytes; 0 bytes frees one


@st.composite
def event_sequences(draw: st.DrawFn, sizes: st.SearchStrategy[int], *, most: int = 60) -> Events:
    """Draw up to so many allocations, and behind each of them up to two frees."""
    events: Events = []
    live: list[int] = []
    for block in range(draw(st.integers(1, most))):
        events.append((block, draw(sizes)))
        live.append(block)
        freed = min(draw(st.integers(0, 2)), len(live))
        events += [(live.pop(draw(st.integers(0, len(live) - 1))), 0) for _ in range(freed)]
    return events
