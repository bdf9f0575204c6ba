"""What ``topk`` takes inside on a card, by formulas that can be followed in the head."""

from __future__ import annotations

import torch

from memplan.estimators.lowering.top_k import top_k_bytes
from memplan.units import KIB, MIB


def hidden(keys: torch.Tensor, count: int, dim: int = -1, *, is_sorted: bool = True) -> int:
    return top_k_bytes((keys, count, dim, True, is_sorted), torch.topk(keys, count, dim, sorted=is_sorted))


def keys(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def test_a_router_takes_nothing_for_its_experts() -> None:
    assert hidden(keys(64 * KIB, 64), 8) == 0
    assert top_k_bytes((torch.tensor(1.0), 1), (torch.tensor(1.0), torch.tensor(0))) == 0


def test_keys_in_another_order_are_copied() -> None:
    assert hidden(keys(512, 512).t(), 8) == MIB


def test_digits_are_counted_for_each_block_and_each_slice_of_long_slices() -> None:
    of_slice = 4 + 8 + 8 + KIB
    assert hidden(keys(4, 128 * KIB), 8) == 4 * (128 * (512 + 8) + of_slice)  # 1024 elements for each block
    assert hidden(keys(64, 1024 * KIB), 8) == 64 * (64 * (512 + 8) + of_slice)  # 64 elements for each thread
    assert hidden(keys(4, 19_999), 8) == 0


def test_more_than_4096_results_are_sorted_beside_themselves() -> None:
    assert hidden(keys(1, 16 * KIB), 8 * KIB) == 8 * KIB * (12 + 8 + 12)  # sorted pairs, positions, and a second pair
    assert hidden(keys(1, 16 * KIB), 8 * KIB, is_sorted=False) == 0
    assert hidden(keys(1, 16 * KIB), 4 * KIB) == 0
