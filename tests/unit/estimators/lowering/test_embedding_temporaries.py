"""What the gradients of embeddings take on a card."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from memplan.estimators.lowering.embedding_temporaries import embedding_rules
from memplan.estimators.lowering.temporary_bytes import NO_TEMPORARIES, TemporaryBytes
from memplan.units import KIB, MIB
from tests.making import sizes
from tests.tensors import meta

RULES = embedding_rules((8, 0), 108)
EACH = 80 * KIB  # 10240 * 8
TOLD, ENDS = 3 * KIB, 256 + 255  # what three blocks of threads tell each other in a sort, and its counters


def hidden(count: int, rows: int, *, by_frequency: bool = False, dtype: torch.dtype = torch.float32) -> TemporaryBytes:
    indices, gradient = meta(count, dtype=torch.int64), meta(count, 256, dtype=dtype)
    args = (gradient, indices, rows, -1, by_frequency)
    found = RULES["aten.embedding_dense_backward"](args, meta(rows, 256, dtype=dtype))
    return replace(found, throughout=sizes(found.throughout), after_results=sizes(found.after_results))


def test_gradients_of_embeddings_are_summed_ten_at_a_time() -> None:
    found = hidden(10240, 1024)
    assert found.throughout == (EACH, EACH, (EACH, 2 * EACH + 2 * 2 * KIB + TOLD + ENDS))  # second pairs, two passes
    sums = 2 * MIB  # of 1024 tens and up to as many beginnings, 256 numbers each
    assert found.after_results == (EACH, (EACH,), 8 * KIB, 8 * KIB, 16 * KIB, sums)


def test_few_embeddings_are_added_up_at_once() -> None:
    assert hidden(3072, 64) == TemporaryBytes(throughout=(), after_results=())
    assert hidden(3072, 300, by_frequency=True).throughout == (
        24 * KIB, 24 * KIB, (24 * KIB, 48 * KIB + 2 * 2 * KIB + KIB + ENDS), 24 * KIB,
    )  # fmt: skip


@pytest.mark.parametrize(("dtype", "in_single"), [(torch.float32, ()), (torch.bfloat16, (256 * KIB,))])
def test_tables_of_few_rows_are_added_to_in_place(dtype: torch.dtype, in_single: tuple[int, ...]) -> None:
    places = (1024 + 256) * 8
    assert hidden(10240, 256, dtype=dtype).after_results == (
        EACH,
        (EACH,),
        2 * KIB,
        2 * KIB,
        places,
        places,
        *in_single,
    )
    assert hidden(102400, 432).after_results[-1] == (10240 + 432) * KIB  # 4 * 108 rows


@pytest.mark.usefixtures("deterministic")
def test_tables_of_few_rows_are_not_added_to_in_place_where_results_are_to_repeat() -> None:
    assert hidden(10240, 256).after_results[-1] == (1024 + 256) * KIB  # partial sums of 256 numbers


def test_up_to_256_rows_are_sorted_by_in_one_pass() -> None:
    assert hidden(10240, 255).throughout == (EACH, EACH, (EACH, 2 * KIB + TOLD + ENDS))


def of_bags(mode: int, *, count: int = 10240, rows: int = 1024, sparse: bool = False) -> TemporaryBytes:
    indices, bags = meta(count, dtype=torch.int64), meta(64, dtype=torch.int64)
    arguments = (meta(64, 256), indices, bags, indices, bags, bags, rows, False, mode, sparse, None, -1)
    found = RULES["aten._embedding_bag_backward"](arguments, meta(rows, 256))
    return replace(found, throughout=sizes(found.throughout), after_results=sizes(found.after_results))


def test_bags_of_embeddings_are_summed_likewise_unless_only_the_largest_counts() -> None:
    assert of_bags(0).after_results == hidden(10240, 1024).after_results
    assert of_bags(2) == of_bags(0, sparse=True) == NO_TEMPORARIES


def test_few_embeddings_in_bags_are_sorted_and_summed_as_many_are() -> None:
    found = of_bags(1, count=1024)
    assert found.throughout == (8 * KIB, 8 * KIB, (8 * KIB, 1))  # one block of threads sorts them
    assert found.after_results[-1] == (102 + 1024) * KIB


def test_bags_are_never_added_to_in_place() -> None:
    assert of_bags(0, rows=256).after_results[-1] == (1024 + 256) * KIB
