"""Which precisions cast operators, and which the weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from memplan.recipe import Precision, Recipe
from memplan.training.half_precision import autocast, weights_dtype
from tests.making import WORKLOAD


@pytest.mark.parametrize("precision", Precision, ids=str)
def test_a_precision_casts_operators_or_weights_or_neither(precision: Precision) -> None:
    with autocast(precision, "cpu"):
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision.removesuffix("-true"))
    expected = (half, None) if precision.is_autocast else (None, half)
    cast = None if product.dtype is torch.float32 else product.dtype
    assert (cast, weights_dtype(WORKLOAD, Recipe(micro_batch_size=1, precision=precision))) == expected


@pytest.mark.parametrize(("precision", "kind"), [("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", None)])
def test_deepspeed_converts_weights_where_others_cast_operators(precision: str, kind: torch.dtype | None) -> None:
    by_deepspeed = replace(WORKLOAD, deepspeed={})
    assert weights_dtype(by_deepspeed, Recipe(micro_batch_size=1, precision=precision)) is kind
