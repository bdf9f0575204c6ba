"""Shapes of operators whose rule in torch refuses what their kernels take."""

from __future__ import annotations

import gc

import torch

from memplan.estimators.fake_tensors.shape_rules import install_shape_rules


def test_a_rule_stays_for_the_rest_of_the_process() -> None:
    install_shape_rules()
    gc.collect()
    first, second = (torch.empty(shape, device="meta") for shape in ((4, 8, 16), (4, 16, 32)))
    assert torch.ops.aten._grouped_mm(first, second).shape == (4, 8, 32)
