"""What attention to packed sequences takes inside."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from memplan.estimators.lowering import packed_attention
from memplan.estimators.lowering.flash_attention import FlashKernels
from memplan.estimators.lowering.packed_attention import PackedAttention
from memplan.units import KIB

AMPERE, HOPPER = (8, 0), (9, 0)
SEQUENCES, HEADS, LONGEST, WIDTH = 4, 8, 1024, 64


@pytest.fixture(autouse=True)
def _on_torch_2_14(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_attention, "TORCH_RELEASE", (2, 14))


def inside(
    kernel: str,
    *,
    capability: tuple[int, int] = HOPPER,
    key_heads: int = HEADS,
    width: int = WIDTH,
    longest: int = LONGEST,
    window: list[int] | None = None,
) -> tuple[Any, ...]:
    rules = PackedAttention(capability, FlashKernels(132)).rules()
    query = torch.empty(2048, HEADS, width, dtype=torch.bfloat16, device="meta")
    key = torch.empty(2048, key_heads, width, dtype=torch.bfloat16, device="meta")
    ends = torch.empty(SEQUENCES + 1, dtype=torch.int32, device="meta")
    if kernel == "forward":
        args: tuple[Any, ...] = (query, key, key, ends, ends, longest, longest, False, None, window)
        return rules["torch_attn._varlen_attn"](args, None).after_results
    args = (query, query, key, key, query, query, ends, ends, longest, longest, False, query, None, window)
    return rules["torch_attn._varlen_attn_backward"](args, None).after_results


FLASH = 8 * (2048 + 4 * 128) * 4  # row sums in fp32, each sequence padded by 128 rows


def test_on_hopper_cudnn_sums_every_sequence_as_if_it_were_the_longest() -> None:
    rows = SEQUENCES * HEADS * LONGEST
    assert inside("forward") == (17 * KIB,)
    # a row's gradient and its sum in fp32; three descriptions of each sequence, and seven
    assert inside("backward") == (rows * (64 + 1) * 4 + (3 * 4 + 7) * 128,)


@pytest.mark.parametrize(
    "changes", [{"capability": AMPERE}, {"longest": 128}, {"window": [256, 0]}], ids=["Ampere", "short", "window"]
)
def test_flash_attention_runs_elsewhere(changes: dict[str, Any]) -> None:
    assert inside("forward", **changes) == ()
    assert inside("backward", **changes) == (FLASH, FLASH * 64)


def test_shared_heads_and_odd_widths_are_flash_attentions() -> None:
    of_head = 2048 * HEADS * 64 * 2  # keys of every head of the query
    assert inside("backward", key_heads=2) == (FLASH, FLASH * 64, of_head, of_head)
    assert inside("backward", width=60) == (FLASH, FLASH * 64)


def test_until_torch_2_13_flash_attention_runs_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_attention, "TORCH_RELEASE", (2, 13))
    assert inside("forward") == ()
    assert inside("backward") == (FLASH, FLASH * 64)
