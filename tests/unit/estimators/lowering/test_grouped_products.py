"""One kernel for all groups takes a table and descriptors, as PyTorch 2.14 allocates them; single products nothing."""

from __future__ import annotations

import pytest
import torch

from memplan.estimators.lowering.grouped_products import grouped_product_rules
from memplan.estimators.lowering.library_workspaces import product_workspaces
from memplan.estimators.lowering.temporary_bytes import NO_TEMPORARIES
from tests.tensors import meta

OPERATOR = "aten._grouped_mm"
H100, B200, A100, RTX_5090 = ((9, 0), 132), ((10, 0), 148), ((8, 0), 108), ((12, 0), 170)
EXPERTS = 8
OFFSETS = meta(EXPERTS, dtype=torch.int32)


def operands(tokens: int, inside: int, outside: int, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, ...]:
    return meta(tokens, inside, dtype=dtype), meta(EXPERTS, inside, outside, dtype=dtype), OFFSETS


@pytest.mark.parametrize(
    ("card", "args", "descriptor_bytes"),
    [
        (H100, operands(4096, 64, 128), 67_584),
        (B200, operands(4096, 64, 128), 795_648),  # 128 columns
        (B200, operands(8 * 128, 64, 256), 795_648),  # 128 rows for each expert
        (B200, operands(65_536, 1024, 4096), 871_424),
        (B200, (meta(1024, 65_536), meta(65_536, 4096), OFFSETS), 871_424),  # gradients of weights
    ],
)
def test_a_kernel_for_all_groups_takes_a_table_and_descriptors(
    card: tuple[tuple[int, int], int], args: tuple[torch.Tensor, ...], descriptor_bytes: int
) -> None:
    args = tuple(each if each is OFFSETS else each.bfloat16() for each in args)
    rule = grouped_product_rules(*card)[OPERATOR]
    assert rule(args, None).after_results == (EXPERTS * 60, descriptor_bytes)
    assert product_workspaces(card[0], OPERATOR, args) == ()


def test_the_table_of_an_odd_number_of_groups_is_aligned() -> None:
    args = (meta(5, 8, 16).bfloat16(), meta(5, 16, 8).bfloat16())
    assert grouped_product_rules(*H100)[OPERATOR](args, None).after_results[0] == 6 * 24 + 5 * 36


@pytest.mark.parametrize(
    ("card", "dtype"),
    [(A100, torch.bfloat16), (RTX_5090, torch.bfloat16), (H100, torch.float16), (B200, torch.float32)],
)
def test_elsewhere_groups_are_products_of_their_own(card: tuple[tuple[int, int], int], dtype: torch.dtype) -> None:
    args = operands(4096, 64, 128, dtype)
    assert grouped_product_rules(*card)[OPERATOR](args, None) is NO_TEMPORARIES
    assert [each.library for each in product_workspaces(card[0], OPERATOR, args)] == ["cuBLAS"]
