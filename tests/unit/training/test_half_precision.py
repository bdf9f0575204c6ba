"""Which precisions cast operators, and which the weights."""

from __future__ import annotations

import pytest
import torch

from memplan.recipe import Precision
from memplan.training.half_precision import autocast, weights_dtype


@pytest.mark.parametrize("precision", Precision, ids=str)
def test_a_precision_casts_operators_or_weights_or_neither(precision: Precision) -> None:
    with autocast(precision, "cpu"):
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision.removesuffix("-true"))
    expected = (half, None) if precision.is_autocast else (None, half)
    cast = None if product.dtype is torch.float32 else product.dtype
    assert (cast, weights_dtype(precision)) == expected
