"""What fused attention takes inside, by formulas that can be followed in the head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from memplan.estimators.lowering.attention_temporaries import attention_rules
from memplan.estimators.lowering.temporary_bytes import NO_TEMPORARIES, TemporaryBytes
from memplan.units import KIB, MIB
from tests.tensors import heads

if TYPE_CHECKING:
    import torch


def test_engines_of_cudnn_take_a_little_in_the_forward_pass_on_hopper() -> None:
    rules = {major: attention_rules((major, 0), None)["aten._scaled_dot_product_cudnn_attention"] for major in (9, 10)}
    assert rules[9]((), None) == TemporaryBytes(after_results=(256,))
    assert rules[10]((), None) == NO_TEMPORARIES


def cudnns_workspace(capability: tuple[int, int], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> int:
    rule = attention_rules(capability, None)["aten._scaled_dot_product_cudnn_attention_backward"]
    (workspace,) = rule((query, query, key, value), None).after_results
    assert isinstance(workspace, int)
    return workspace


@pytest.mark.parametrize("width", [64, 128])
def test_cudnn_accumulates_the_gradient_of_the_query_once_on_cards_for_data_centres_and_others_twice(
    width: int,
) -> None:
    query = heads(8, length=1001, width=width)
    once = 8 * 1001 * (width + 1) * 4  # with the row sums
    assert cudnns_workspace((9, 0), query, query, query) == once + 256
    assert cudnns_workspace((10, 0), query, query, query) == once
    for capability in ((8, 0), (8, 9), (12, 0)):
        assert cudnns_workspace(capability, query, query, query) == once + 8 * 1008 * width * 4 + 128


@pytest.mark.parametrize(
    ("queries", "keys", "is_twice"),
    [(129, 129, False), (128, 129, True), (129, 128, True), (1, 129, False), (1, 128, True), (2, 129, True)],
)
def test_cudnn_accumulates_twice_on_blackwell_where_lengths_are_short(queries: int, keys: int, is_twice: bool) -> None:
    query, key = heads(8, length=queries), heads(8, length=keys)
    once = 8 * queries * (64 + 1) * 4
    again = 8 * -(-queries // 8) * 8 * 64 * 4 + 128
    assert cudnns_workspace((10, 0), query, key, key) == once + is_twice * again


def test_cudnn_accumulates_deepseeks_heads_once_on_blackwell() -> None:
    key, value = heads(8, length=64, width=192), heads(8, length=64, width=128)
    assert cudnns_workspace((10, 0), key, key, value) == 8 * 64 * (192 + 1) * 4


def test_cudnn_makes_gradients_of_shared_heads_for_every_query_head() -> None:
    query, key, value = heads(8), heads(2, length=2048), heads(2, length=2048, width=128)
    once = 2 * MIB + 32 * KIB
    assert cudnns_workspace((9, 0), query, key, key) == once + 256 + 2 * 2 * MIB
    assert cudnns_workspace((9, 0), query, key, value) == once + 256 + (2 + 4) * MIB
    assert cudnns_workspace((10, 0), query, key, key) == once + 128 + 2 * 2 * MIB


def test_cudnn_reads_gradients_whose_last_dimension_is_dense() -> None:
    query = heads(8)
    rule = attention_rules((9, 0), None)["aten._scaled_dot_product_cudnn_attention_backward"]
    gradient = query.mT.contiguous().mT
    assert rule((gradient, query, query, query), None).after_results == (MIB, 2 * MIB + 32 * KIB + 256)
