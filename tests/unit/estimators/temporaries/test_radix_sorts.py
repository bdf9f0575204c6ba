"""What CUB's sorts take, with sizes of which each block of threads sorts whole ones."""

from __future__ import annotations

import pytest

from memplan.estimators.temporaries.radix_sorts import radix_sort
from memplan.units import KIB, MIB

T4, A100, H100, B200 = (7, 5), (8, 0), (9, 0), (10, 0)
ENDS = 256 + 255  # counters of the passes, and what aligns the parts


@pytest.mark.parametrize(
    ("capability", "key_bytes", "value_bytes", "elements"),
    [
        (T4, 4, 8, 256 * 11),
        (T4, 4, 4, 256 * 46),
        (A100, 4, 8, 384 * 8),
        (A100, 8, 8, 384 * 10),
        (A100, 8, 0, 384 * 10),
        (A100, 4, 0, 384 * 21),
        (H100, 4, 8, 384 * 14),
        (H100, 8, 8, 384 * 12),
        (H100, 2, 8, 512 * 11),
        (H100, 1, 8, 384 * 9),
        (B200, 4, 8, 384 * 14),
    ],
)
def test_blocks_of_threads_sort_as_many_as_their_card_is_tuned_for(
    capability: tuple[int, int], key_bytes: int, value_bytes: int, elements: int
) -> None:
    assert radix_sort(capability, key_bytes, value_bytes).elements_of_block == elements


def test_a_long_sort_takes_histograms_of_each_pass_counts_of_each_block_and_second_pairs() -> None:
    of_pairs = radix_sort(A100, 4, 8)
    count = 1024 * 3072  # 1024 blocks, whose counts take a KiB each
    assert of_pairs.size_bytes(count, 32) == 4 * 2 * KIB + MIB + 36 * MIB + ENDS


def test_one_pass_needs_no_second_pairs() -> None:
    assert radix_sort(A100, 8, 8).size_bytes(1024 * 3840, 8) == 2 * KIB + MIB + ENDS
    assert radix_sort(H100, 1, 8).size_bytes(1024 * 3456, 8) == 2 * KIB + MIB + ENDS


def test_what_one_block_sorts_takes_one_byte() -> None:
    of_pairs = radix_sort(A100, 8, 8)
    assert of_pairs.size_bytes(256 * 9, 64) == 1
    assert of_pairs.size_bytes(256 * 9 + 1, 64) > 2 * 256 * 9 * 8


def test_of_short_keys_before_hopper_only_second_pairs_are_counted() -> None:
    assert radix_sort(A100, 2, 8).size_bytes(MIB, 16) == 10 * MIB + 255
    assert radix_sort(A100, 2, 8).pairs_bytes(MIB) == 10 * MIB + 255
