"""Which attention kernel a card would choose."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from memplan.estimators.lowering import attention
from memplan.estimators.lowering.attention import AttentionCall, Backend, attend, choose_backend

AMPERE, TURING, HOPPER, BLACKWELL, CONSUMER_AMPERE = (8, 0), (7, 5), (9, 0), (10, 0), (8, 6)
CALL = AttentionCall(
    dtype=torch.bfloat16,
    query_heads=12,
    key_heads=12,
    query_length=1024,
    key_length=1024,
    head_dim=64,
    value_dim=64,
    has_mask=False,
    trains_mask=False,
    dropout=0.0,
    causal=True,
    trains=True,
    grouped=False,
    is_dense=True,
)


@pytest.mark.parametrize(
    ("changes", "capability", "expected"),
    [
        ({}, AMPERE, Backend.FLASH),
        ({}, HOPPER, Backend.CUDNN),
        ({"head_dim": 192, "value_dim": 192}, HOPPER, Backend.CUDNN),
        ({"head_dim": 192, "value_dim": 192}, BLACKWELL, Backend.FLASH),
        ({"head_dim": 192, "value_dim": 128}, BLACKWELL, Backend.CUDNN),
        ({"query_length": 1, "causal": False, "dropout": 0.25}, HOPPER, Backend.FLASH),
        ({"has_mask": True, "causal": False}, HOPPER, Backend.CUDNN),
        ({"has_mask": True, "trains_mask": True, "causal": False}, HOPPER, Backend.EFFICIENT),
        ({"dropout": 0.1}, HOPPER, Backend.FLASH),  # cuDNN takes multiples of 1/16 only
        ({"has_mask": True, "causal": False}, AMPERE, Backend.EFFICIENT),
        ({"dtype": torch.float32}, AMPERE, Backend.EFFICIENT),
        ({"dtype": torch.float32, "head_dim": 66, "value_dim": 66}, AMPERE, Backend.MATH),
        ({"dtype": torch.float64}, AMPERE, Backend.MATH),
        ({"dtype": torch.float16}, TURING, Backend.EFFICIENT),
        ({}, TURING, Backend.MATH),  # no bfloat16 kernel before Ampere
        ({"key_length": 512}, AMPERE, Backend.EFFICIENT),  # flash has no causal mask for unequal lengths
        ({"key_heads": 4}, AMPERE, Backend.MATH),
        ({"key_heads": 4, "grouped": True}, AMPERE, Backend.FLASH),
        ({"key_heads": 4, "grouped": True, "dtype": torch.float32}, AMPERE, Backend.MATH),
        ({"key_heads": 4, "grouped": True, "has_mask": True, "causal": False}, AMPERE, Backend.MATH),
        ({"is_dense": False}, AMPERE, Backend.MATH),
        ({"head_dim": 256, "value_dim": 256, "dropout": 0.1}, AMPERE, Backend.FLASH),
        ({"head_dim": 256, "value_dim": 256, "dropout": 0.1}, CONSUMER_AMPERE, Backend.EFFICIENT),
    ],
)
def test_the_first_kernel_whose_checks_pass_is_chosen(
    changes: dict[str, object], capability: tuple[int, int], expected: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "TORCH_RELEASE", (2, 13))
    assert choose_backend(replace(CALL, **changes), capability) is expected


@pytest.mark.usefixtures("deterministic")
def test_cudnn_is_not_chosen_where_results_must_repeat() -> None:
    assert choose_backend(CALL, HOPPER) is Backend.FLASH


@pytest.mark.usefixtures("warning_of_others")
def test_cudnn_is_chosen_where_it_is_only_warned_of_what_does_not_repeat() -> None:
    assert choose_backend(CALL, HOPPER) is Backend.CUDNN


@pytest.mark.parametrize(
    ("changes", "capability", "expected"),
    [
        ({"key_heads": 4, "grouped": True, "dtype": torch.float32}, AMPERE, Backend.EFFICIENT),
        ({"key_heads": 4, "grouped": True, "has_mask": True, "causal": False}, AMPERE, Backend.EFFICIENT),
        ({"key_heads": 4, "dtype": torch.float32}, AMPERE, Backend.MATH),
        ({"key_heads": 1}, AMPERE, Backend.FLASH),
        ({"key_heads": 1, "dtype": torch.float32}, AMPERE, Backend.EFFICIENT),
        ({"key_heads": 5, "grouped": True}, AMPERE, Backend.MATH),  # of 12
        ({"head_dim": 192, "value_dim": 192}, HOPPER, Backend.FLASH),
        ({"head_dim": 192, "value_dim": 192, "trains": False}, BLACKWELL, Backend.CUDNN),
        ({"head_dim": 192, "value_dim": 128}, HOPPER, Backend.CUDNN),
        ({"head_dim": 256, "value_dim": 256}, BLACKWELL, Backend.CUDNN),
        ({"head_dim": 256, "value_dim": 256}, AMPERE, Backend.FLASH),
    ],
)
def test_from_torch_2_14_on_more_kernels_share_heads_and_cudnn_trains_other_widths(
    changes: dict[str, object], capability: tuple[int, int], expected: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "TORCH_RELEASE", (2, 14))
    assert choose_backend(replace(CALL, **changes), capability) is expected


@pytest.mark.parametrize(("release", "kernel"), [((2, 14), "Squeeze"), ((2, 13), "UnsafeView")])
def test_from_torch_2_14_on_three_dimensions_are_those_of_one_batch(
    release: tuple[int, int], kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "TORCH_RELEASE", release)
    with FakeTensorMode():
        query = torch.empty(4, 16, 8, requires_grad=True)
        attended = attend(query, query, query, capability=AMPERE)
    assert attended.shape == (4, 16, 8)
    assert attended.grad_fn is not None
    assert attended.grad_fn.name().startswith(kernel)
    before = attended.grad_fn.next_functions[0][0]
    assert before is not None
    assert (before.name() == "ScaledDotProductEfficientAttentionBackward0") is (release == (2, 14))


def test_until_torch_2_11_cudnn_drops_any_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "TORCH_RELEASE", (2, 11))
    assert choose_backend(replace(CALL, dropout=0.1), HOPPER) is Backend.CUDNN


def test_a_kernel_that_the_user_switched_off_is_not_chosen() -> None:
    with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]):
        assert choose_backend(CALL, AMPERE) is Backend.MATH


def test_a_mask_of_truth_values_hides_what_is_false() -> None:
    query, mask = torch.rand(1, 1, 4, 8), torch.ones(4, 4, dtype=torch.bool).tril()
    found = attend(query, query, query, mask, capability=AMPERE)
    torch.testing.assert_close(found, torch.nn.functional.scaled_dot_product_attention(query, query, query, mask))


def test_cudnn_runs_on_any_card_where_nothing_else_is_allowed() -> None:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
        assert choose_backend(CALL, AMPERE) is Backend.CUDNN
