"""What sorts take on a card, and kernels that are made of sorts."""

from __future__ import annotations

import pytest
import torch

from memplan.estimators.lowering.cuda_temporaries import cuda_temporary_bytes
from memplan.estimators.lowering.temporary_bytes import NO_TEMPORARIES, TemporaryBytes
from memplan.units import KIB, MIB

LONG = 8192


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("keys", "bytes_each"),
    [
        (meta(LONG), 8 + 12),  # positions, and a second pair
        (meta(64, LONG), 16 + 4 + 12),  # positions with segments twice, sorted keys, and a second pair
        (meta(128, LONG), 8 + 12),
        (meta(LONG, 128).t(), 4 + 12 + 8 + 12),  # beside a copy, values and indices in its order
    ],
)
def test_a_long_sort_takes_room_for_more_pairs(keys: torch.Tensor, bytes_each: int) -> None:
    assert cuda_temporary_bytes("aten.sort", (keys, -1), None).after_results == keys.numel() * bytes_each


def test_a_short_sort_is_in_place() -> None:
    assert cuda_temporary_bytes("aten.sort", (meta(1024, 4096),), None) == NO_TEMPORARIES
    assert cuda_temporary_bytes("aten.sort", (meta(4096, LONG), 0), None) == NO_TEMPORARIES


@pytest.mark.parametrize(("count", "key_bytes"), [(1024, 4), (32 * 1024, 8)])
def test_a_permutation_sorts_positions_by_random_keys(count: int, key_bytes: int) -> None:
    shuffled = meta(count, dtype=torch.int64)
    positions, keys, second_pairs = 8, 2 * key_bytes, key_bytes + 8
    expected = count * (positions + keys + second_pairs)
    assert cuda_temporary_bytes("aten.randperm", (count,), shuffled).after_results == expected


def test_a_median_of_all_sorts_and_one_along_a_dimension_reads() -> None:
    values = meta(LONG)
    assert cuda_temporary_bytes("aten.median", (values,), None).before_results == LONG * (12 + 20)
    assert cuda_temporary_bytes("aten.median", (values, 0), None) == NO_TEMPORARIES
    assert cuda_temporary_bytes("aten.median", (meta(64, 64).t(), 0), None).after_results == 16 * KIB


def test_distinct_values_are_found_by_a_sort_that_remembers_where_they_were() -> None:
    values = meta(1024)
    assert cuda_temporary_bytes("aten._unique2", (values,), None) == TemporaryBytes(
        before_results=4 * KIB, around_results=4 * KIB
    )
    remembered = cuda_temporary_bytes("aten._unique2", (values, True, True), None)
    assert remembered == TemporaryBytes(
        before_results=20 * KIB, around_results=12 * KIB
    )  # sorted at 12, and while it is at 20 more


def test_values_that_are_broadcast_are_copied_before_they_are_added() -> None:
    source, rows = meta(64, 256), meta(1024, dtype=torch.int64)
    put = "aten._index_put_impl_"
    assert cuda_temporary_bytes(put, (source, [rows], meta(1024, 256), True), source).after_results == 48 * KIB
    assert cuda_temporary_bytes(put, (source, [rows], meta(256), True), source).after_results == 48 * KIB + MIB
    assert (
        cuda_temporary_bytes(put, (source, [rows], meta(256, 1024).t(), True), source).after_results == 48 * KIB + MIB
    )
    assert cuda_temporary_bytes(put, (source, [rows], meta(1024, 256), False), source) == NO_TEMPORARIES


def test_gradients_of_embeddings_are_summed_ten_at_a_time() -> None:
    indices, gradient = meta(10, 1024, dtype=torch.int64), meta(1024, 256)
    temporaries = cuda_temporary_bytes(
        "aten.embedding_dense_backward", (meta(10, 1024, 256), indices, 1024, -1, False), gradient
    )
    assert temporaries.before_results == 240 * KIB  # 3 * 10240 * 8
    assert temporaries.around_results == 160 * KIB
    assert temporaries.after_results == (10 + 2 + 2) * 8 * KIB + 2 * MIB  # 2048 sums of 256 * 4 bytes


def test_few_embeddings_are_added_up_at_once() -> None:
    few, gradient = meta(3072, dtype=torch.int64), meta(64, 256)
    assert cuda_temporary_bytes("aten.embedding_dense_backward", (meta(3072, 256), few, 64, -1, False), gradient) == (
        NO_TEMPORARIES
    )
    by_frequency = (meta(3072, 256), few, 64, -1, True)
    assert cuda_temporary_bytes("aten.embedding_dense_backward", by_frequency, gradient).around_results == 3 * 3072 * 8


def test_bags_of_embeddings_are_summed_likewise_unless_only_the_largest_counts() -> None:
    indices, bags, gradient = meta(10240, dtype=torch.int64), meta(64, dtype=torch.int64), meta(1024, 256)

    def hidden(mode: int, *, sparse: bool = False) -> TemporaryBytes:
        sizes = (meta(10240, dtype=torch.int64), bags, bags)
        arguments = (meta(64, 256), indices, bags, *sizes, 1024, False, mode, sparse, None, -1)
        return cuda_temporary_bytes("aten._embedding_bag_backward", arguments, gradient)

    assert hidden(0).after_results == 14 * 8 * KIB + 2 * MIB
    assert hidden(2) == hidden(0, sparse=True) == NO_TEMPORARIES


def of_top_k(keys: torch.Tensor, count: int, *, is_sorted: bool = True) -> int:
    found = torch.topk(keys, count, sorted=is_sorted)
    return cuda_temporary_bytes("aten.topk", (keys, count, -1, True, is_sorted), found).after_results


def test_a_router_takes_nothing_for_its_experts() -> None:
    assert of_top_k(meta(64 * KIB, 64), 8) == 0
    assert cuda_temporary_bytes("aten.topk", (torch.tensor(1.0), 1), torch.tensor(1.0).topk(1)) == NO_TEMPORARIES


def test_keys_of_top_k_in_another_order_are_copied() -> None:
    assert of_top_k(meta(512, 512).t(), 8) == MIB


def test_digits_are_counted_for_each_block_and_each_slice_of_long_slices() -> None:
    of_slice = 4 + 8 + 8 + KIB
    assert of_top_k(meta(4, 128 * KIB), 8) == 4 * (128 * (512 + 8) + of_slice)  # 1024 elements for each block
    assert of_top_k(meta(64, 1024 * KIB), 8) == 64 * (64 * (512 + 8) + of_slice)  # 64 elements for each thread
    assert of_top_k(meta(4, 19_999), 8) == 0


def test_more_than_4096_results_are_sorted_beside_themselves() -> None:
    assert of_top_k(meta(1, 16 * KIB), 8 * KIB) == 8 * KIB * (12 + 8 + 12)  # pairs, positions, and a second pair
    assert of_top_k(meta(1, 16 * KIB), 8 * KIB, is_sorted=False) == 0
    assert of_top_k(meta(1, 16 * KIB), 4 * KIB) == 0
