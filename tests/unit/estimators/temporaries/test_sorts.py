"""Blocks of sorts by lengths alone: where other kernels run, and what they take."""

from __future__ import annotations

from memplan.estimators.temporaries.sorts import digit_counts, second_pairs, sorted_indices, sorting, sums_by_index


def test_a_few_slices_are_sorted_in_one_and_many_as_such() -> None:
    assert sorting(1, 4096, 4) == (0, 0, 0, 0)
    assert sorting(1, 8192, 4) == (64 * 1024, 0, 0, 96 * 1024)
    assert sorting(127, 8192, 4)[1] == 127 * 8192 * 8
    assert sorting(128, 8192, 4) == (2**23, 0, 0, 3 * 2**22)
    assert sorting(4, 1_000_000, 4) == (8_000_000, 0, 0, 12_000_000)  # one after the other


def test_slices_are_read_by_several_blocks_where_they_are_long_for_their_number() -> None:
    assert not any(digit_counts(20, 19_999, 4))
    assert digit_counts(20, 20_000, 4)[1] == 20 * 1024
    assert not any(digit_counts(0, 20_000, 4))


def test_more_indices_than_fit_one_block_are_sorted() -> None:
    assert not any(sorted_indices(3072, 50_000, 8, 0))
    assert sorted_indices(3073, 50_000, 8, 0) == (24_584, 24_584, 24_584, 49_168, 0)
    assert not any(sums_by_index(3072, 50_000, 64, 8, 4, 431, 0))
    assert sums_by_index(3073, 50_000, 64, 8, 4, 431, 0)[-1] == (307 + 3073) * 64 * 4


def test_whether_there_are_second_pairs_may_change_with_the_micro_batch() -> None:
    assert second_pairs(4, 256) == (0,)
    assert second_pairs(5, 320) == (80,)  # 5 samples of 64 positions, one of each
