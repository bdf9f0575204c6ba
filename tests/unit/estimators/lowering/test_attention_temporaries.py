"""What fused attention takes inside, by formulas that can be followed in the head."""

from __future__ import annotations

import torch

from memplan.estimators.lowering.attention_temporaries import (
    cudnn_backward,
    efficient_backward,
    efficient_forward,
    flash_backward,
)
from memplan.units import KIB, MIB


def heads(count: int, *, length: int = 1024, width: int = 64, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return heads that lie in memory as a projection makes them: by positions first."""
    return torch.empty(1, length, count, width, dtype=dtype, device="meta").transpose(1, 2)


def test_flash_attention_accumulates_the_gradient_of_the_query_in_single_precision() -> None:
    query = heads(8)
    temporaries = flash_backward((query, query, query, query), None)
    assert temporaries.after_results == 2 * MIB + 32 * KIB  # 8 * 1024 * 64 * 4 bytes, and 8 * 1024 row sums
    assert temporaries.around_results == 0


def test_wide_heads_are_rounded_up_further() -> None:
    query = heads(8, width=160)
    assert flash_backward((query,) * 4, None).after_results == 6 * MIB + 32 * KIB  # 192 wide


def test_shared_heads_are_expanded_in_the_backward_pass() -> None:
    query, key = heads(8), heads(2)
    temporaries = flash_backward((query, query, key, key), None)
    assert temporaries.after_results == 2 * MIB + 32 * KIB + 2 * MIB  # dk and dv of 8 heads, 1 MiB each


def test_a_gradient_that_lies_by_heads_first_is_copied() -> None:
    query = heads(8)
    gradient = query.contiguous()
    assert flash_backward((gradient, query, query, query), None).around_results == MIB
    assert efficient_backward((gradient, query, query, query), None).around_results == MIB


def test_efficient_attention_accumulates_in_blocks_of_rows() -> None:
    query = heads(8, length=1000)  # 16 blocks of 64 x 64 each, with a header of 16 bytes, and the row sums
    assert efficient_backward((query,) * 4, None).before_return == 2 * MIB + 8 * 16 * 16 + 32_000
    wide = heads(8, length=1025, width=128)  # 9 blocks of 128 x 128 each
    assert efficient_backward((wide,) * 4, None).before_return == 8 * 9 * (64 * KIB + 16) + 8 * 1025 * 4


def test_efficient_attention_accumulates_all_gradients_of_wide_heads_in_half_types() -> None:
    wide = heads(1, length=128, width=256)  # 4 blocks of 128 x 64; key and value 64 x 256 each
    assert efficient_backward((wide,) * 4, None).before_return == 4 * (32 * KIB + 16) + 2 * 64 * KIB + 512


def test_in_single_precision_efficient_attention_makes_a_product_first() -> None:
    query = heads(8, dtype=torch.float32)
    temporaries = efficient_backward((query,) * 4, None)
    assert temporaries.after_results == 2 * MIB + 32 * KIB
    assert temporaries.before_return == 2 * MIB + 8 * 16 * 16 + 32 * KIB


def test_cudnn_accumulates_without_rounding_up() -> None:
    query, key = heads(8, length=1000), heads(2, length=1000)
    assert cudnn_backward((query, query, key, key), None).after_results == 8 * 1000 * (64 + 1) * 4
    assert cudnn_backward((query.mT.contiguous().mT, query, key, key), None).after_results == 8 * 1000 * (
        (64 + 1) * 4 + 64 * 2
    )


def test_efficient_attention_accumulates_the_output_of_wide_heads_in_single_precision() -> None:
    wide, narrow, single = heads(8, width=256), heads(8, width=128), heads(8, width=256, dtype=torch.float32)
    assert efficient_forward((wide, wide, wide), None).after_results == 8 * MIB
    assert efficient_forward((narrow, narrow, narrow), None) == efficient_forward((single, single, single), None)
    assert efficient_forward((narrow, narrow, narrow), None).after_results == 0
