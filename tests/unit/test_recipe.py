"""Recipes are validated where they are made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from memplan.errors import UsageError
from memplan.recipe import Precision, Recipe


def test_the_global_batch_is_micro_batch_times_accumulation_times_world() -> None:
    assert Recipe(micro_batch_size=4, accumulation_steps=3, world_size=2).global_batch_size == 24


def test_knobs_may_be_given_in_their_order() -> None:
    named = Recipe(micro_batch_size=4, accumulation_steps=3, precision="bf16", learning_rate=0.1)
    assert Recipe(4, 3, "bf16", 0.1) == named


def test_a_recipe_is_written_by_the_knobs_that_shape_a_step() -> None:
    assert str(Recipe(12, 2, "bf16", 0.1)) == "bf16, 12 x 2"
    assert str(Recipe(1, activation_checkpointing=True, world_size=4)) == "fp32, 1 x 1 x 4 replicas, checkpointed"


def test_a_precision_is_taken_by_name() -> None:
    assert Recipe(micro_batch_size=1, precision="bf16").precision is Precision.BF16


def test_numbers_of_numpy_are_taken_as_plain_ones() -> None:
    made = Recipe(micro_batch_size=np.int64(8), accumulation_steps=np.int32(2))
    assert made == Recipe(8, 2)
    assert (type(made.micro_batch_size), type(made.accumulation_steps)) == (int, int)


@pytest.mark.parametrize(
    "knobs",
    [
        {"micro_batch_size": 0},
        {"micro_batch_size": 2.0},
        {"micro_batch_size": True},
        {"micro_batch_size": 1, "accumulation_steps": -1},
        {"micro_batch_size": 1, "learning_rate": 0.0},
        {"micro_batch_size": 1, "precision": "fp8"},
        {"micro_batch_size": 1, "precision": 16},
    ],
)
def test_a_knob_out_of_range_is_refused_by_name_and_value(knobs: dict[str, object]) -> None:
    name, value = list(knobs.items())[-1]
    with pytest.raises(UsageError, match=name.split("_")[0]) as caught:
        Recipe(**knobs)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("rate", ["1e-3", True, 0.0, float("nan"), float("inf")])
def test_a_learning_rate_is_a_number_above_0(rate: Any) -> None:
    with pytest.raises(UsageError, match=f"learning_rate={rate!r} must be a number above 0"):
        Recipe(micro_batch_size=1, learning_rate=rate)
