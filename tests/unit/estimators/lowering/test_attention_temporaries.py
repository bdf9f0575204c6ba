"""What fused attention takes inside, by formulas that can be followed in the head."""

from __future__ import annotations

import pytest
import torch

from memplan.estimators.lowering.attention_temporaries import (
    attention_rules,
    efficient_backward,
    efficient_forward,
    flash_backward,
    wide_accumulator_bytes,
)
from memplan.estimators.lowering.temporary_bytes import TemporaryBytes
from memplan.estimators.temporaries.ruled_blocks import RuledBlock
from memplan.units import KIB, MIB


def heads(count: int, *, length: int = 1024, width: int = 64, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return heads that lie in memory as a projection makes them: by positions first."""
    return torch.empty(1, length, count, width, dtype=dtype, device="meta").transpose(1, 2)


def test_flash_attention_accumulates_the_gradient_of_the_query_in_single_precision() -> None:
    query = heads(8)
    temporaries = flash_backward((query,) * 5, None)
    assert temporaries.after_results == (32 * KIB, 2 * MIB)  # 8 * 1024 row sums, and 8 * 1024 * 64 * 4 bytes
    assert temporaries.throughout == ()


def test_wide_heads_are_rounded_up_further() -> None:
    query = heads(8, width=160)
    assert flash_backward((query,) * 5, None).after_results == (32 * KIB, 6 * MIB)  # 192 wide


def test_shared_heads_are_expanded_in_the_backward_pass() -> None:
    query, key = heads(8), heads(2)
    temporaries = flash_backward((query, query, key, key, query), None)
    assert temporaries.after_results == (32 * KIB, 2 * MIB, MIB, MIB)  # dk and dv of 8 heads


def test_what_lies_by_heads_first_is_copied() -> None:
    query = heads(8)
    gradient = query.contiguous()
    assert flash_backward((gradient, query, query, query, query), None).throughout == (MIB,)
    assert flash_backward((gradient, query, query, query, gradient), None).throughout == (MIB, MIB)
    assert efficient_backward((gradient, query, query, query), None).throughout == (MIB,)


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
    expected = heads_of_batch * (of_queries + splits * of_keys_and_values)
    assert wide_accumulator_bytes(heads_of_batch, 128, keys, 256, 256) == (expected,)


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


def cudnns_workspace(query: torch.Tensor, key: torch.Tensor, capability: tuple[int, int] = (9, 0)) -> object:
    rule = attention_rules(capability)["aten._scaled_dot_product_cudnn_attention_backward"]
    (workspace,) = rule((query, query, key, key), None).after_results
    return workspace


def test_cudnn_accumulates_narrow_heads_once_on_hopper_and_others_twice() -> None:
    narrow, wide = heads(8, length=1001), heads(8, length=1001, width=128)
    assert cudnns_workspace(narrow, narrow) == 8 * 1001 * (64 + 1) * 4 + 256
    assert cudnns_workspace(narrow, narrow, (10, 0)) == 8 * 1001 * (64 + 1) * 4 + 8 * 1008 * 64 * 4 + 128
    assert cudnns_workspace(wide, wide) == 8 * 1001 * (128 + 1) * 4 + 8 * 1008 * 128 * 4 + 128


def test_cudnn_makes_gradients_of_shared_heads_for_every_query_head() -> None:
    query, key = heads(8), heads(2, length=2048)
    assert cudnns_workspace(query, key) == 2 * MIB + 32 * KIB + 256 + 2 * 2 * MIB


def test_cudnn_reads_gradients_whose_last_dimension_is_dense() -> None:
    query = heads(8)
    rule = attention_rules((9, 0))["aten._scaled_dot_product_cudnn_attention_backward"]
    gradient = query.mT.contiguous().mT
    assert rule((gradient, query, query, query), None).after_results == (MIB, 2 * MIB + 32 * KIB + 256)


def test_efficient_attention_accumulates_the_output_of_wide_heads_in_single_precision() -> None:
    wide, narrow, single = heads(8, width=256), heads(8, width=128), heads(8, width=256, dtype=torch.float32)
    assert efficient_forward((wide, wide, wide), None).after_results == (8 * MIB,)
    for each in (narrow, single):
        assert efficient_forward((each, each, each), None) == TemporaryBytes(results_on_host=2)
