"""Blocks of sorts by lengths alone: where other kernels run, and what they take."""

from __future__ import annotations

from memplan.estimators.temporaries.radix_sorts import radix_sort
from memplan.estimators.temporaries.sorts import (
    SortByRandomKeys,
    SortOfIndices,
    SortOfPlaces,
    SortOfSlices,
    SumsByIndex,
    digit_counts,
)

A100 = (8, 0)
SINGLE_WITH_PLACES, PLACES = radix_sort(A100, 4, 8), radix_sort(A100, 8, 8)


def test_a_few_slices_are_sorted_in_one_and_many_as_such() -> None:
    sorting = SortOfSlices(of_pairs=SINGLE_WITH_PLACES)
    assert sorting(1, 4096) == (0, 0, 0, 0)
    assert sorting(1, 8192) == (64 * 1024, 0, 0, SINGLE_WITH_PLACES.size_bytes(8192, 32))
    assert sorting(127, 8192)[1:] == (127 * 2**16, 127 * 2**15, SINGLE_WITH_PLACES.size_bytes(127 * 8192, 32))
    assert sorting(128, 8192) == (2**23, 0, 0, 3 * 2**22 + 255)  # pairs alone
    one_by_one = SINGLE_WITH_PLACES.size_bytes(1_000_000, 32)
    assert sorting(4, 1_000_000) == (8_000_000, 0, 0, one_by_one)


def test_keys_of_a_permutation_have_more_bits_where_many_might_be_equal() -> None:
    permuting = SortByRandomKeys(by_narrow=SINGLE_WITH_PLACES, by_wide=PLACES)
    assert permuting(0) == (0, 0, 0, 0)
    assert permuting(1024) == (8192, 4096, 4096, 1)
    assert permuting(30_083) == (240_664, 120_332, 120_332, SINGLE_WITH_PLACES.size_bytes(30_083, 32))
    assert permuting(30_084) == (240_672, 240_672, 240_672, PLACES.size_bytes(30_084, 33))


def test_slices_are_read_by_several_blocks_where_they_are_long_for_their_number() -> None:
    assert not any(digit_counts(20, 19_999, 4))
    assert digit_counts(20, 20_000, 4)[1] == 20 * 1024
    assert not any(digit_counts(0, 20_000, 4))


def test_more_indices_than_fit_one_block_are_sorted() -> None:
    sorting = SortOfIndices(of_indices=PLACES, counts_each=False, most_at_once=3072)
    assert not any(sorting(3072, 50_000))
    assert sorting(3073, 50_000) == (24_584, 24_584, 24_584, PLACES.size_bytes(3073, 16), 0)
    sums = SumsByIndex(index_bytes=8, most_at_once=3072, most_rows=431)
    assert not any(sums(3072, 50_000, 64, 4))
    assert sums(3073, 50_000, 64, 4)[-1] == (307 + 3073) * 64 * 4


def test_whether_there_are_second_pairs_may_change_with_the_micro_batch() -> None:
    sorting = SortOfPlaces(of_indices=PLACES)
    assert sorting(3840, 256) == (2048 + 1024 + 256 + 255,)  # one block of threads, one pass
    assert sorting(3840, 257) == (2 * 2048 + 1024 + 2 * 3840 * 8 + 256 + 255,)
    assert sorting(3840, 1) == sorting(3840, 256)
