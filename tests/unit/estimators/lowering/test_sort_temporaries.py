"""What sorts take on a card, and kernels that are made of sorts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from memplan.estimators.lowering.temporary_bytes import NO_TEMPORARIES
from memplan.units import KIB, MIB
from tests.making import sizes
from tests.tensors import cuda_temporary_bytes, meta

LONG = 8192
FOUR_PASSES = 4 * 2 * KIB + 256 + 255  # their histograms and counters
SORTED_LONG = 96 * KIB + 3 * KIB + FOUR_PASSES  # second pairs, and what three blocks of threads tell each other


@pytest.mark.parametrize(
    ("keys", "bytes_each", "sorting"),
    [
        (meta(LONG), (8,), SORTED_LONG),  # positions
        # positions with segments twice, sorted keys, and what 171 blocks of threads tell each other
        (meta(64, LONG), (8, 8, 4), 6 * MIB + 171 * KIB + FOUR_PASSES),
        (meta(128, LONG), (8,), 12 * MIB + 255),
        (meta(LONG, 128).t(), (4, 4, 8, 8), 12 * MIB + 255),  # beside a copy, values and indices in its order
    ],
)
def test_a_long_sort_takes_room_for_more_pairs(keys: torch.Tensor, bytes_each: tuple[int, ...], sorting: int) -> None:
    expected = (*(keys.numel() * each for each in bytes_each), sorting)
    assert sizes(cuda_temporary_bytes("aten.sort", (keys, -1), None).after_results) == expected
    assert sizes(cuda_temporary_bytes("aten.sort", (keys, True, -1), None).after_results) == expected  # stable


def test_a_short_sort_is_in_place_but_for_positions() -> None:
    assert cuda_temporary_bytes("aten.sort", (meta(1024, 4096),), None).after_results == (32 * KIB,)
    assert cuda_temporary_bytes("aten.sort", (meta(1024, LONG), 0), None).after_results == (8 * KIB,)
    assert cuda_temporary_bytes("aten.sort", (meta(1024, LONG), True, 0), None).after_results == (8 * KIB,)


@pytest.mark.parametrize(
    ("count", "key_bytes", "sorting"),
    [
        (1024, 4, 1),  # by one block of threads
        (32 * 1024, 8, 512 * KIB + 9 * KIB + 5 * 2 * KIB + 256 + 255),  # second pairs, nine blocks, five passes
    ],
)
def test_a_permutation_sorts_positions_by_random_keys(count: int, key_bytes: int, sorting: int) -> None:
    shuffled = meta(count, dtype=torch.int64)
    expected = (*(count * each for each in (8, key_bytes, key_bytes)), sorting)
    assert sizes(cuda_temporary_bytes("aten.randperm", (count,), shuffled).after_results) == expected


def test_a_median_of_all_sorts_and_one_along_a_dimension_reads() -> None:
    values = meta(LONG)
    assert sizes(cuda_temporary_bytes("aten.median", (values,), None).before_results) == (
        *(LONG * each for each in (4, 8, 8)),
        SORTED_LONG,
    )
    assert cuda_temporary_bytes("aten.median", (values, 0), None) == NO_TEMPORARIES
    assert cuda_temporary_bytes("aten.median", (meta(64, 64).t(), 0), None).after_results == (16 * KIB,)


def test_the_most_common_are_counted_in_a_copy_with_their_dimension_last() -> None:
    assert cuda_temporary_bytes("aten.mode", (meta(64, 64),), None) == NO_TEMPORARIES
    assert cuda_temporary_bytes("aten.mode", (meta(64, 64), 0), None).after_results == (16 * KIB,)
    assert cuda_temporary_bytes("aten.mode", (meta(1, 64), 0), None) == NO_TEMPORARIES


def test_the_most_common_of_long_rows_are_found_by_a_sort_of_each() -> None:
    rows = meta(4, LONG)  # a copy, the positions of one row, and a second pair
    assert cuda_temporary_bytes("aten.mode", (rows, -1), None).after_results == (128 * KIB, 64 * KIB, 96 * KIB)


def test_distinct_values_are_found_by_a_sort_that_remembers_where_they_were() -> None:
    values = meta(LONG)
    alone = 32 * KIB + 2 * KIB + FOUR_PASSES  # other keys, and what two blocks of threads tell each other
    assert sizes(cuda_temporary_bytes("aten._unique2", (values,), None).around_results) == (32 * KIB, (alone,))
    remembered = sizes(cuda_temporary_bytes("aten._unique2", (values, True, True), None).around_results)
    assert remembered == (32 * KIB, 64 * KIB, (64 * KIB, SORTED_LONG), 64 * KIB)


def test_values_that_are_broadcast_are_copied_before_they_are_added() -> None:
    source, rows = meta(512, 64), meta(4096, dtype=torch.int64)
    put = "aten._index_put_impl_"

    def hidden(values: torch.Tensor) -> object:
        return sizes(cuda_temporary_bytes(put, (source, [rows], values, True), source).after_results)

    each = 32 * KIB  # linear, sorted and original indices, and while these are sorted others
    sorting = 64 * KIB + 2 * KIB + 2 * 2 * KIB + 256 + 255  # second pairs, two blocks of threads, two passes
    assert hidden(meta(4096, 64)) == (each, each, each, (each, sorting))
    assert hidden(meta(64)) == hidden(meta(64, 4096).t()) == (each, MIB, each, each, (each, sorting))
    overwriting = cuda_temporary_bytes(put, (source, [rows], meta(4096, 64), False), source)
    assert sizes(overwriting.around_results) == overwriting.after_results == ()


ROWS, VALUES = meta(4096, dtype=torch.int64), meta(4096, 64)


def taken(operator: str, *args: Any) -> tuple[Any, ...]:
    return sizes(cuda_temporary_bytes(operator, args, args[0]).after_results)


@pytest.mark.usefixtures("deterministic")
def test_writes_by_indices_are_sorted_where_results_are_to_repeat() -> None:
    target = meta(512, 64)
    adding = taken("aten.index_put_", target, [ROWS], VALUES, True)
    assert len(adding) == 4
    assert taken("aten.index_put_", target, [ROWS], VALUES) == adding
    assert taken("aten.index_put_", target, [ROWS], meta(1)) == ()  # fills
    assert taken("aten.index_copy", target, 0, ROWS, VALUES) == adding
    assert taken("aten.index_add_", target, 0, ROWS, VALUES) == (MIB, *adding)  # scaled


@pytest.mark.usefixtures("deterministic")
def test_a_scatter_numbers_the_other_dimensions_where_results_are_to_repeat() -> None:
    target, index = meta(512, 8), meta(512, 8, dtype=torch.int64)
    adding = taken("aten.index_put_", target, [index, index], target, True)
    assert taken("aten.scatter_add", target, 1, index, target) == (4 * KIB, *adding)  # 512 rows
    assert taken("aten.scatter", target, -1, index, target) == (4 * KIB, *adding)
    assert taken("aten.scatter_reduce_", target, 0, index, target, "sum") == (64, *adding)  # 8 columns
    assert taken("aten.scatter_reduce_", target, 0, index, target, "amax") == ()
    assert taken("aten.scatter", target, 0, index, 1.0) == ()


@pytest.mark.usefixtures("deterministic")
def test_a_scatter_by_the_same_index_everywhere_is_a_write_of_rows() -> None:
    target, index = meta(512, 64), ROWS.unsqueeze(1).expand(-1, 64)
    adding = taken("aten.index_put_", target, [ROWS], VALUES, True)
    assert taken("aten.scatter_add_", target, 0, index, VALUES) == adding
    vector = meta(512)
    assert taken("aten.scatter_add_", vector, 0, ROWS, meta(4096)) == taken(
        "aten.index_put_", vector, [ROWS], meta(4096), True
    )


@pytest.mark.usefixtures("warning_of_others")
def test_writes_are_sorted_where_other_algorithms_are_only_warned_of() -> None:
    assert taken("aten.index_copy", meta(512, 64), 0, ROWS, VALUES) != ()


def test_writes_whose_results_need_not_repeat_are_not_sorted() -> None:
    target = meta(512, 64)
    assert taken("aten.index_add", target, 0, ROWS, VALUES) == ()
    assert taken("aten.index_copy", target, 0, ROWS, VALUES) == ()
    assert taken("aten.scatter_add", target, 0, ROWS.unsqueeze(1).expand(-1, 64), VALUES) == ()


@pytest.mark.parametrize(
    ("shape", "indices", "has_second_pairs"),
    [((256, 4), 1, False), ((257, 4), 1, True), ((16, 16, 4), 2, False), ((16, 17, 4), 2, True)],
)
def test_up_to_256_places_are_sorted_in_one_pass(shape: tuple[int, ...], indices: int, has_second_pairs: bool) -> None:
    source, positions = meta(*shape), [meta(4096, dtype=torch.int64)] * indices
    put = cuda_temporary_bytes("aten.index_put", (source, positions, meta(4096, 4), True), source)
    each = 32 * KIB
    one_pass = 2 * KIB + 2 * KIB + 256 + 255  # two blocks of threads
    sorting = one_pass + 2 * KIB + 2 * each if has_second_pairs else one_pass
    assert sizes(put.after_results) == (each, each, each, (each, sorting))


def of_top_k(keys: torch.Tensor, count: int, *, is_sorted: bool = True) -> Any:
    found = torch.topk(keys, count, sorted=is_sorted)
    return sizes(cuda_temporary_bytes("aten.topk", (keys, count, -1, True, is_sorted), found).after_results)


def test_a_router_takes_nothing_for_its_experts() -> None:
    assert of_top_k(meta(64 * KIB, 64), 8) == ()
    of_a_number = cuda_temporary_bytes("aten.topk", (torch.tensor(1.0), 1), torch.tensor(1.0).topk(1))
    assert sizes(of_a_number.after_results) == ()


def test_keys_of_top_k_in_another_order_are_copied() -> None:
    assert of_top_k(meta(512, 512).t(), 8) == (MIB,)


def test_digits_are_counted_for_each_block_and_each_slice_of_long_slices() -> None:
    assert of_top_k(meta(4, 128 * KIB), 8) == counts(blocks=4 * 128, slices=4)  # 1024 elements for each block
    assert of_top_k(meta(64, 1024 * KIB), 8) == counts(blocks=64 * 64, slices=64)  # 64 elements for each thread
    assert of_top_k(meta(4, 19_999), 8) == ()


def counts(*, blocks: int, slices: int) -> tuple[int, ...]:
    return 512 * blocks, 1024 * slices, 4 * blocks, 4 * blocks, (4 + 8 + 8) * slices


def test_more_than_4096_results_are_sorted_beside_themselves() -> None:
    places, values = 64 * KIB, 32 * KIB
    assert of_top_k(meta(1, 16 * KIB), 8 * KIB)[-1] == (places, values, (places, SORTED_LONG), places)
    assert of_top_k(meta(1, 16 * KIB), 8 * KIB, is_sorted=False) == of_top_k(meta(1, 16 * KIB), 4 * KIB) == ()
