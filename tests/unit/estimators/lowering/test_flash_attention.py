"""What flash attention takes inside, by formulas that can be followed in the head."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from memplan.estimators.lowering.flash_attention import FlashKernels
from memplan.estimators.lowering.temporary_bytes import NO_TEMPORARIES, TemporaryBytes
from memplan.units import KIB, MIB
from tests.making import sizes
from tests.tensors import heads, meta

FORWARD, BACKWARD = "aten._scaled_dot_product_flash_attention", "aten._scaled_dot_product_flash_attention_backward"
H100, UNKNOWN_CARD = FlashKernels(132).rules(), FlashKernels(None).rules()
ENDS = meta(5, dtype=torch.int32)  # of four sequences


def taken(operator: str, *args: Any) -> tuple[Any, ...]:
    return sizes(H100[operator](args, None).after_results)


def split_bytes(query: torch.Tensor, key: torch.Tensor) -> tuple[Any, ...]:
    return taken(FORWARD, query, key, key)


def backward(*args: torch.Tensor) -> TemporaryBytes:
    return H100[BACKWARD](args, None)


def by_position(samples: int, count: int, *, length: int = 1024) -> torch.Tensor:
    return meta(samples, length, count, 64, dtype=torch.bfloat16)


def packed(count: int) -> torch.Tensor:
    return meta(1024, count, 64, dtype=torch.bfloat16)


def test_keys_are_split_where_few_heads_leave_the_card_idle() -> None:
    query = heads(8)  # 8 * 16 blocks of rows, for 264 places; two parts of the keys fill 97 % of them
    assert split_bytes(query, query) == (64 * KIB, 4 * MIB)  # 2 * 8 * 1024 sums, and 64 numbers for each
    assert split_bytes(query, query[:, :, :256]) == ()  # which are one block of keys


@pytest.mark.parametrize(("count", "is_split"), [(12, True), (14, False)])
def test_no_keys_are_split_where_four_fifths_of_the_card_are_busy(count: int, is_split: bool) -> None:
    query = heads(count)  # 16 blocks of rows each: 211 of 264 places are four fifths
    assert bool(split_bytes(query, query)) is is_split


def test_more_samples_keep_the_card_busy_with_whole_keys() -> None:
    assert split_bytes(heads(8).expand(2, -1, -1, -1), heads(8)) == ()


def test_no_keys_are_split_under_dropout_nor_for_a_card_of_which_only_memory_is_known() -> None:
    query = heads(8)
    assert H100[FORWARD]((query, query, query, 0.1), None) == NO_TEMPORARIES
    assert UNKNOWN_CARD[FORWARD]((query, query, query), None) == NO_TEMPORARIES


def test_a_single_query_is_read_as_many_that_share_its_keys() -> None:
    query, key = heads(8)[:, :, :1], heads(2)  # 2 blocks of 4 rows, and four parts
    assert split_bytes(query, key) == (4 * 2 * 4 * 4, 4 * 2 * 4 * 64 * 4)


def test_the_gradient_of_the_query_is_accumulated_in_single_precision() -> None:
    query = heads(8)
    temporaries = backward(*(query,) * 5)
    assert temporaries.after_results == (32 * KIB, 2 * MIB)  # 8 * 1024 row sums, and 8 * 1024 * 64 * 4 bytes
    assert temporaries.throughout == ()


def test_wide_heads_are_rounded_up_further() -> None:
    query = heads(8, width=160)
    assert backward(*(query,) * 5).after_results == (32 * KIB, 6 * MIB)  # 192 wide


def test_shared_heads_are_expanded_in_the_backward_pass() -> None:
    query, key = heads(8), heads(2)
    assert backward(query, query, key, key, query).after_results == (32 * KIB, 2 * MIB, MIB, MIB)  # dk and dv of 8


def test_what_lies_by_heads_first_is_copied() -> None:
    query = heads(8)
    gradient = query.contiguous()
    assert backward(gradient, query, query, query, query).throughout == (MIB,)
    assert backward(gradient, query, query, query, gradient).throughout == (MIB, MIB)


@pytest.mark.usefixtures("deterministic")
def test_deterministic_algorithms_accumulate_on_each_multiprocessor_that_shares_a_head() -> None:
    query = heads(8)
    assert taken(BACKWARD, *(query,) * 5) == (32 * KIB, 17 * 2 * MIB)  # 132 / 8, rounded up
    assert taken(BACKWARD, *(heads(132),) * 5)[1] == 33 * MIB
    assert UNKNOWN_CARD[BACKWARD]((query,) * 5, None).after_results == (32 * KIB, 2 * MIB)


@pytest.mark.usefixtures("warning_of_others")
def test_where_other_algorithms_are_only_warned_of_attention_need_not_repeat_its_results() -> None:
    query = heads(8)
    assert backward(*(query,) * 5).after_results == (32 * KIB, 2 * MIB)


def test_packed_sequences_are_padded_by_128_rows_each() -> None:
    query, key = packed(8), packed(2)
    rows = 8 * (1024 + 4 * 128)
    found = FlashKernels(132).packed_backward((query, query, key, key, query, query, ENDS))
    assert found.after_results == (4 * rows, 4 * rows * 64, MIB, MIB)


def test_attention_by_position_is_as_that_by_head() -> None:
    query, key = by_position(1, 8), by_position(1, 2)
    lengths = (None, None, 1024, 1024)
    forward = taken("aten._flash_attention_forward", query, key, key, *lengths, 0.0)
    assert forward == split_bytes(query.transpose(1, 2), key.transpose(1, 2))
    assert forward != ()
    found = taken("aten._flash_attention_backward", query, query, key, key, query, query, *lengths)
    assert found == (32 * KIB, 2 * MIB, MIB, MIB)


def test_packed_keys_are_not_split() -> None:
    query = packed(8)
    args = (query, query, query, ENDS, ENDS, 256, 256, 0.0)
    assert H100["aten._flash_attention_forward"](args, None) == NO_TEMPORARIES
    rows = 8 * (1024 + 4 * 128)
    found = taken("aten._flash_attention_backward", query, query, query, query, query, query, ENDS, ENDS, 256, 256)
    assert found == (4 * rows, 4 * rows * 64)


def test_the_package_returns_the_row_sums_and_takes_the_rest_as_pytorch_does() -> None:
    query, key = by_position(1, 8), by_position(1, 2)
    assert taken("flash_attn._flash_attn_forward", query, query, query, 0.0) == (64 * KIB, 4 * MIB)
    args = (query, query, key, key, *[None] * 12)
    assert taken("flash_attn._flash_attn_backward", *args, False) == (2 * MIB, MIB, MIB)
    assert taken("flash_attn._flash_attn_backward", *args, True) == (17 * 2 * MIB, MIB, MIB)


def test_the_package_pads_packed_sequences_likewise() -> None:
    query = packed(8)
    accumulator_bytes = 4 * 8 * (1024 + 4 * 128) * 64
    args = (query, query, query, query, *[None] * 5, ENDS, *[None] * 10)
    assert taken("flash_attn._flash_attn_varlen_backward", *args, False) == (accumulator_bytes,)
    assert taken("flash_attn._flash_attn_varlen_backward", *args, True) == (5 * accumulator_bytes,)  # 132 / (4 * 8)
    assert H100["flash_attn._flash_attn_varlen_forward"]((query,), None) == NO_TEMPORARIES
