"""What memory-efficient attention takes inside, by formulas that can be followed in the head."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from memplan.estimators.lowering import efficient_attention
from memplan.estimators.lowering.efficient_attention import (
    AllSums,
    BackwardKernel,
    backward_kernel,
    efficient_backward_by_position,
    efficient_forward,
    efficient_forward_by_position,
)
from memplan.estimators.lowering.efficient_attention import efficient_backward as backward_on
from memplan.estimators.lowering.temporary_bytes import TemporaryBytes
from memplan.estimators.temporaries.ruled_blocks import RuledBlock
from memplan.units import KIB, MIB
from tests.tensors import heads, meta

A100, V100 = (8, 0), (7, 0)
efficient_backward = partial(backward_on, capability=A100)


def test_efficient_attention_accumulates_in_blocks_of_rows() -> None:
    query = heads(8, length=1000)  # 16 blocks of 64 x 64 each, with a header of 16 bytes, and the row sums
    assert efficient_backward((query,) * 4, None).after_results == (32_000, 2 * MIB + 8 * 16 * 16)
    wide = heads(8, length=1025, width=128)  # 9 blocks of 128 x 128 each
    assert efficient_backward((wide,) * 4, None).after_results == (8 * 1025 * 4, 8 * 9 * (64 * KIB + 16))


def workspace_of(*tensors: torch.Tensor) -> int:
    """Return the bytes of what efficient attention takes after the row sums."""
    _, workspace = efficient_backward(tensors, None).after_results
    assert isinstance(workspace, RuledBlock)
    return workspace.size_bytes


def test_efficient_attention_accumulates_all_gradients_of_wide_heads_in_half_types() -> None:
    wide = heads(1, length=64, width=256)  # 4 blocks of 128 x 64; key and value 64 x 256 each
    assert workspace_of(wide, wide, wide, wide) == 4 * (32 * KIB + 16) + 2 * 64 * KIB


def test_keys_wider_than_values_make_efficient_attention_one_of_wide_heads() -> None:
    key, value = heads(1, length=64, width=192), heads(1, length=64, width=128)
    assert efficient_forward((key, key, value), None).after_results == (32 * KIB,)  # of the value's width
    sums = (64 * 256 + 64 * 128) * 4  # 192 is rounded up to 256
    assert workspace_of(value, key, key, value) == 3 * (32 * KIB + 16) + sums  # blocks of 128 x 64


@pytest.mark.parametrize(
    ("heads_of_batch", "keys", "splits"),
    [(32, 130, 3), (32, 512, 6), (100, 512, 2), (101, 512, 1), (4096, 512, 1), (1, 64, 1), (1, 65, 2)],
)
def test_blocks_of_keys_are_split_where_few_heads_leave_the_card_idle(
    heads_of_batch: int, keys: int, splits: int
) -> None:
    of_queries, of_keys_and_values = 4 * (32 * KIB + 16), 2 * 64 * KIB
    rule = AllSums(key_width=256, value_width=256, rows=128)
    assert rule(heads_of_batch, 128, keys) == (heads_of_batch * (of_queries + splits * of_keys_and_values),)
    repeatable = replace(rule, is_deterministic=True)
    assert repeatable(heads_of_batch, 128, keys) == (heads_of_batch * (of_queries + of_keys_and_values),)


SMALL, TALL, LARGE = (BackwardKernel(rows=rows, columns=columns) for rows, columns in ((64, 64), (128, 64), (128, 128)))
SMALL_WITH_SUMS, TALL_WITH_SUMS = (replace(each, sums_all=True) for each in (SMALL, TALL))


@pytest.mark.parametrize(
    ("capability", "widths", "kernels"),
    [
        ((8, 0), (64, 96, 128, 129), (SMALL, LARGE, LARGE, TALL_WITH_SUMS)),
        ((9, 0), (64, 96, 128, 129), (SMALL, LARGE, LARGE, TALL_WITH_SUMS)),
        ((10, 0), (64, 96, 128, 129), (SMALL, LARGE, LARGE, TALL_WITH_SUMS)),
        ((8, 6), (64, 96, 97, 128, 129), (SMALL, TALL, SMALL_WITH_SUMS, SMALL_WITH_SUMS, TALL_WITH_SUMS)),
        ((8, 9), (64, 96, 97, 128, 129), (SMALL, TALL, SMALL_WITH_SUMS, SMALL_WITH_SUMS, TALL_WITH_SUMS)),
        ((12, 0), (64, 65, 128, 129), (SMALL, SMALL_WITH_SUMS, SMALL_WITH_SUMS, TALL_WITH_SUMS)),
        ((7, 0), (64, 65, 128, 129), (SMALL, TALL, TALL, TALL_WITH_SUMS)),
        ((7, 5), (64, 65, 128, 129), (SMALL, TALL, TALL, TALL_WITH_SUMS)),
    ],
)
def test_the_kernel_for_half_types_follows_from_the_shared_memory_of_the_card(
    capability: tuple[int, int], widths: tuple[int, ...], kernels: tuple[BackwardKernel, ...]
) -> None:
    assert tuple(backward_kernel(capability, width, is_half=True) for width in widths) == kernels


@pytest.mark.parametrize(
    ("capability", "wide"), [((7, 5), SMALL), ((8, 0), TALL), ((8, 6), SMALL), ((9, 0), TALL), ((12, 0), SMALL)]
)
def test_the_kernel_in_single_precision_is_a_tall_one_for_wide_heads_where_there_is_room(
    capability: tuple[int, int], wide: BackwardKernel
) -> None:
    assert backward_kernel(capability, 64, is_half=False) == SMALL
    assert backward_kernel(capability, 65, is_half=False) == backward_kernel(capability, 256, is_half=False) == wide


def test_what_lies_by_heads_first_is_copied() -> None:
    query = heads(8)
    assert efficient_backward((query.contiguous(), query, query, query), None).throughout == (MIB,)


def test_volta_sums_rows_of_wide_heads_by_a_product_of_copies() -> None:
    wide = heads(8, width=256, dtype=torch.float16)
    row_sums, product, _ = backward_on((wide,) * 4, None, capability=V100).after_results
    assert (row_sums, product) == (32 * KIB, (8 * MIB, 8 * MIB, 8 * MIB, 32 * KIB))


def test_values_wider_than_keys_make_the_blocks_of_efficient_attention_larger() -> None:
    key, value = heads(1, length=128, width=64), heads(1, length=128, width=128)
    assert efficient_backward((value, key, key, value), None).after_results == (512, 64 * KIB + 16)


def test_in_single_precision_efficient_attention_makes_a_product_first() -> None:
    query = heads(8, dtype=torch.float32)
    temporaries = efficient_backward((query,) * 4, None)
    assert temporaries.after_results == (32 * KIB, (2 * MIB, 32 * KIB), 2 * MIB + 8 * 16 * 16)


def test_efficient_attention_sums_gradients_of_shared_heads_afterwards() -> None:
    query, key = heads(8), heads(2)
    expanded = efficient_backward((query, query, key, key), None).after_results[:2]
    assert expanded == (MIB, MIB)  # dk and dv of 8 heads


def test_efficient_attention_accumulates_the_output_of_wide_heads_in_single_precision() -> None:
    wide, narrow, single = heads(8, width=256), heads(8, width=128), heads(8, width=256, dtype=torch.float32)
    assert efficient_forward((wide, wide, wide), None).after_results == (8 * MIB,)
    for each in (narrow, single):
        dropping_out = (each, each, each, None, True, 0.1)
        assert efficient_forward(dropping_out, None) == TemporaryBytes(results_on_host=2)


def test_from_torch_2_14_on_unused_random_states_of_efficient_attention_lie_on_the_card(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(efficient_attention, "TORCH_RELEASE", (2, 14))
    query = heads(8)
    assert efficient_forward((query, query, query, None, True, 0.0), None).results_on_host == 0
    assert efficient_forward((query, query, query, None, True, 0.1), None).results_on_host == 2


def by_position(*, width: int = 64, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return 2048 positions of 8 heads each."""
    return meta(1, 2048, 8, width, dtype=dtype)


def arguments_of_backward(query: torch.Tensor, *, longest: int) -> tuple[object, ...]:
    """Return those for four packed sequences."""
    ends = meta(5, dtype=torch.int32)
    return (query, query, query, query, None, query, ends, ends, longest, longest)


def test_of_packed_sequences_each_accumulates_as_if_it_were_the_longest() -> None:
    temporaries = efficient_backward_by_position(
        arguments_of_backward(by_position(), longest=1024), None, capability=A100
    )
    sums = 2048 * 8 * 4
    # 4 sequences of 8 heads of 16 blocks of 64 x 64, with a header of 16 bytes
    assert temporaries.after_results == (sums, (4 * MIB, sums), 4 * 8 * 16 * (16 * KIB + 16))
    assert temporaries.throughout == ()


def test_batches_by_position_accumulate_as_those_by_head() -> None:
    query = meta(4, 512, 8, 64, dtype=torch.bfloat16)
    by_head = query.transpose(1, 2)
    arguments = (query, query, query, query, None, query, None, None, None, None)
    found = efficient_backward_by_position(arguments, None, capability=A100)
    assert found == efficient_backward((by_head,) * 4, None)


@pytest.mark.parametrize(("release", "dropout", "on_host"), [((2, 14), 0.0, 0), ((2, 14), 0.1, 4), ((2, 13), 0.0, 4)])
def test_random_states_by_position_come_before_two_lengths(
    release: tuple[int, int], dropout: float, on_host: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(efficient_attention, "TORCH_RELEASE", release)
    query = by_position(width=256, dtype=torch.bfloat16)
    arguments = (query, query, query, None, None, None, None, None, dropout)
    temporaries = efficient_forward_by_position(arguments, None)
    assert temporaries.results_on_host == on_host
    assert temporaries.after_results == (16 * MIB,)  # the output in fp32
