"""What DeepSpeed's engine is told of a model, and what it makes of parameters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from memplan.training.deepspeed_engine import hidden_size, parts_of


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, None),
        (SimpleNamespace(), None),
        (SimpleNamespace(hidden_size=64), 64),
        (SimpleNamespace(hidden_sizes=[32, 64, 16]), 64),
        (SimpleNamespace(text_config=SimpleNamespace(hidden_size=48)), 48),
    ],
)
def test_the_hidden_size_is_found_as_transformers_finds_it(config: Any, expected: int | None) -> None:
    model = nn.Linear(2, 2)
    model.config = config
    assert hidden_size(model) == expected


def test_a_sharded_parameter_has_a_part_of_this_replica() -> None:
    parameter, part = nn.Parameter(torch.empty(0)), torch.ones(2)
    assert parts_of(parameter) == (parameter,)
    parameter.ds_tensor = part  # type: ignore[attr-defined]  # as DeepSpeed sets it
    assert parts_of(parameter)[1] is part
