"""Partial sums of a batch norm over channels-last images."""

from __future__ import annotations

import pytest

from memplan.estimators.temporaries.batch_statistics import channel_sums


@pytest.mark.parametrize(
    ("channels", "values", "blocks"),
    [
        (64, 256 * 8, 8),  # 32 channels and 16 rows of threads, of 16 values each: 256 values a block
        (64, 256 * 7, 1),
        (64, 256 * 100 + 1, 101),
        (64, 256 * 999, 128),
        (8, 1024 * 8, 8),  # 64 rows of threads
    ],
)
def test_thread_blocks_share_a_channel_where_there_are_eight_or_more(channels: int, values: int, blocks: int) -> None:
    expected = 4 * channels * blocks * 4 if blocks > 1 else 0
    assert channel_sums(channels, values, 4) == (expected,)


def test_nothing_is_summed_of_nothing() -> None:
    assert channel_sums(64, 0, 2) == (0,)
