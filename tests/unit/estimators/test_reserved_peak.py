"""The reserved peak alone is that of a replay with all its figures, pool by pool and stream by stream."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.estimators.allocators.allocator_config import AllocatorConfig, SegmentOrder
from memplan.estimators.figures import Events as SizedEvents
from memplan.estimators.figures import replay_events
from memplan.estimators.reserved_peak import ReservedPeaks
from memplan.units import MIB
from tests.allocation_events import Events, event_sequences

request_bytes = st.one_of(st.integers(1, 3 * MIB), st.integers(1, 30).map(lambda count: count * 2 * MIB))
configs = st.builds(
    AllocatorConfig,
    expandable_segments=st.booleans(),
    max_split_size_bytes=st.sampled_from([None, None, 32 * MIB]),
    roundup_power2_divisions=st.sampled_from([(0,) * 16, (4,) * 16]),
    segment_order=st.sampled_from(SegmentOrder),
)


@settings(max_examples=200, deadline=None)
@given(event_sequences(request_bytes), configs, st.integers(1, 3))
def test_it_is_that_of_the_full_replay_asked_once_and_again(
    events: Events, config: AllocatorConfig, streams: int
) -> None:
    blocks = np.array([name for name, _ in events], dtype=np.int32)
    requests = np.array([size for _, size in events], dtype=np.int64)
    sized = SizedEvents(
        positions=np.arange(blocks.size),
        blocks=blocks,
        requests_bytes=requests,
        block_bytes=np.zeros(blocks.max() + 1, dtype=np.int64),
        cache_returns=(),
        side_streams={name: name % streams for name in blocks.tolist() if name % streams},
        graph_streams=frozenset({2}),
    )
    peaks = ReservedPeaks(config)
    full = replay_events(sized, config).peak_reserved_bytes
    assert [peaks.of(sized), peaks.of(sized)] == [full, full]  # the second answer is remembered
    returning = replace(sized, cache_returns=(blocks.size // 2,))
    assert peaks.of(returning) == replay_events(returning, config).peak_reserved_bytes
