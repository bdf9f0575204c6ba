"""Temporaries inside CUDA kernels, by formulas that can be followed in the head."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from memplan.estimators.lowering.cuda_temporaries import cuda_hidden_bytes
from memplan.estimators.lowering.hidden_bytes import NOTHING_HIDDEN, HiddenBytes
from memplan.units import KIB, MIB


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


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


def test_a_mask_is_counted_in_a_copy_of_whole_numbers_and_half_precision_is_summed_as_it_is() -> None:
    assert cuda_hidden_bytes("aten.sum", (meta(512, 512, dtype=torch.bool),), meta(dtype=torch.int64)).beside == 2 * MIB
    assert cuda_hidden_bytes("aten.sum", (meta(512, 512, dtype=torch.bfloat16),), meta()) is NOTHING_HIDDEN


def test_a_loss_is_there_for_each_element_before_it_is_reduced() -> None:
    assert cuda_hidden_bytes("aten.mse_loss", (meta(512, 512), meta(512, 1)), meta()).beside == MIB
    assert cuda_hidden_bytes("aten.mse_loss", (meta(4), meta(4), 0), meta(4)) is NOTHING_HIDDEN


def test_a_mask_that_selects_is_turned_into_positions_along_each_of_its_dimensions() -> None:
    source, mask, picked = meta(64, 64, 256), torch.zeros(64, 64, dtype=torch.bool), meta(1024, 256)
    mask[:16] = True
    positions_bytes = 16 * KIB  # 1024 * 2 * 8
    assert cuda_hidden_bytes("aten.index", (source, [mask]), picked).around == positions_bytes
    accumulated = cuda_hidden_bytes("aten.index_put", (source, [mask], picked, True), source)
    assert (accumulated.around, accumulated.beside) == (positions_bytes, MIB + 48 * KIB)  # and 6 * 1024 * 8
    assert cuda_hidden_bytes("aten.index_put", (source, [mask], meta()), source) == NOTHING_HIDDEN  # a masked fill


def test_positions_of_all_that_a_mask_shows_are_there_while_the_result_is_made() -> None:
    source, mask = meta(512, 512), meta(512, 512, dtype=torch.bool)
    hidden = cuda_hidden_bytes("aten.masked_select", (source, mask), meta(1024))
    assert hidden == HiddenBytes(around=16 * KIB)  # 1024 * 2 * 8


def test_what_an_unknown_mask_selects_is_told_by_what_is_taken() -> None:
    with FakeTensorMode():
        source, picked = torch.empty(64, 64, 256), torch.empty(1024, 256)
        mask = source[:, :, 0] > 0
        assert cuda_hidden_bytes("aten.index", (source, [mask]), picked).around == 16 * KIB


def test_a_masked_scatter_counts_up_to_each_element_of_its_mask() -> None:
    target = meta(512, 512, dtype=torch.bfloat16)
    assert cuda_hidden_bytes("aten.masked_scatter", (target, target > 0, target), target).beside == 2 * MIB


def test_the_exponential_of_matrices_takes_powers_and_their_combinations() -> None:
    single, batch = meta(512, 512), meta(4, 256, 256)
    assert cuda_hidden_bytes("aten.linalg_matrix_exp", (single,), single).beside == 12 * MIB
    assert cuda_hidden_bytes("aten.linalg_matrix_exp", (batch,), batch).before == 11 * MIB
