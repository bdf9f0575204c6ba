"""Temporaries inside CUDA kernels, by formulas that can be followed in the head."""

from __future__ import annotations

import torch

from memplan.estimators.lowering.cuda_temporaries import cuda_hidden_bytes
from memplan.estimators.lowering.hidden_bytes import NOTHING_HIDDEN
from memplan.units import KIB, MIB


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def test_an_operator_without_a_rule_hides_nothing() -> None:
    assert cuda_hidden_bytes("aten.relu", (meta(4),), meta(4)) is NOTHING_HIDDEN


def test_flash_attention_accumulates_the_gradient_of_the_query_in_single_precision() -> None:
    query = meta(1, 8, 1024, 64, dtype=torch.bfloat16)
    hidden = cuda_hidden_bytes("aten._scaled_dot_product_flash_attention_backward", (query, query, query, query), None)
    assert hidden.beside == 2 * MIB + 32 * KIB  # 8 * 1024 * 64 * 4 bytes, and 8 * 1024 row sums


def test_shared_heads_are_expanded_in_the_backward_pass() -> None:
    query, key = meta(1, 8, 1024, 64, dtype=torch.bfloat16), meta(1, 2, 1024, 64, dtype=torch.bfloat16)
    hidden = cuda_hidden_bytes("aten._scaled_dot_product_flash_attention_backward", (query, query, key, key), None)
    assert hidden.beside == 2 * MIB + 32 * KIB + 2 * MIB  # dk and dv of 8 heads, 1 MiB each


def test_efficient_attention_in_single_precision_needs_only_row_sums() -> None:
    query = meta(1, 8, 1024, 64)
    hidden = cuda_hidden_bytes(
        "aten._scaled_dot_product_efficient_attention_backward", (query, query, query, query), None
    )
    assert hidden.beside == 32 * KIB


def test_a_batched_product_copies_an_operand_whose_strides_blas_cannot_take() -> None:
    fitting = meta(4, 64, 64)
    strided = meta(4, 64, 128)[..., ::2]
    assert cuda_hidden_bytes("aten.bmm", (fitting, fitting.transpose(1, 2)), fitting).beside == 0
    assert cuda_hidden_bytes("aten.bmm", (fitting, strided), fitting).beside == 4 * 64 * 64 * 4


def test_sorting_takes_a_second_pair_of_keys_and_indices() -> None:
    assert cuda_hidden_bytes("aten.sort", (meta(1024),), None).beside == 12 * KIB


def test_the_entropy_of_logits_takes_two_tensors_of_their_size() -> None:
    logits = meta(512, 512)
    arguments = (logits, logits)
    assert (
        cuda_hidden_bytes("aten.binary_cross_entropy_with_logits", arguments, torch.empty((), device="meta")).beside
        == 2 * MIB - 4
    )
    assert cuda_hidden_bytes("aten.binary_cross_entropy_with_logits", arguments, logits).beside == MIB
