"""The scaling table, line by line."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.errors import UsageError
from memplan.recipe import Recipe
from memplan.recommend.scaling import (
    LearningRateRule,
    iteration_factor,
    optimizer_step_factor,
    rule_remark,
    scale_learning_rate,
    split_global_batch,
    trust_warning,
)

SIZES = st.integers(1, 512)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [(LearningRateRule.LINEAR, 8e-4), (LearningRateRule.SQRT, 4e-4), (LearningRateRule.NONE, 2e-4)],
)
def test_a_batch_four_times_as_large_scales_the_rate_by_the_rule(rule: LearningRateRule, expected: float) -> None:
    assert scale_learning_rate(2e-4, ratio=4, rule=rule) == expected


def test_the_scaled_rate_has_no_float_noise() -> None:
    assert 2e-4 * 3 != 6e-4
    assert scale_learning_rate(2e-4, ratio=3, rule=LearningRateRule.LINEAR) == 6e-4


def test_a_ratio_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="ratio 0"):
        scale_learning_rate(1e-3, ratio=0, rule=LearningRateRule.LINEAR)


def test_passes_shrink_with_the_micro_batch_and_not_with_accumulation() -> None:
    before = Recipe(micro_batch_size=4)
    assert iteration_factor(before, Recipe(micro_batch_size=12)) == Fraction(1, 3)
    assert iteration_factor(before, Recipe(micro_batch_size=4, accumulation_steps=8)) == 1


def test_passes_follow_accumulation_where_the_global_batch_is_held() -> None:
    assert iteration_factor(Recipe(micro_batch_size=8), Recipe(micro_batch_size=2, accumulation_steps=4)) == 4


def test_optimizer_steps_shrink_with_the_global_batch() -> None:
    before = Recipe(micro_batch_size=4, accumulation_steps=2)
    assert optimizer_step_factor(before, Recipe(micro_batch_size=16, accumulation_steps=2)) == Fraction(1, 4)
    assert optimizer_step_factor(before, Recipe(micro_batch_size=2, accumulation_steps=4)) == 1


def test_replicas_count_as_samples_of_a_pass() -> None:
    before = Recipe(micro_batch_size=4, world_size=2)
    assert iteration_factor(before, Recipe(micro_batch_size=4, world_size=8)) == Fraction(1, 4)


@given(st.tuples(SIZES, SIZES, SIZES), st.tuples(SIZES, SIZES, SIZES))
def test_the_samples_seen_stay_the_same(before: tuple[int, int, int], after: tuple[int, int, int]) -> None:
    old, new = (Recipe(micro_batch_size=b, accumulation_steps=a, world_size=w) for b, a, w in (before, after))
    assert iteration_factor(old, new) * new.micro_batch_size * new.world_size == old.micro_batch_size * old.world_size
    assert optimizer_step_factor(old, new) * new.global_batch_size == old.global_batch_size


@pytest.mark.parametrize(
    ("optimizer", "rule", "part"),
    [
        ("SGD", LearningRateRule.LINEAR, "the linear rule fits SGD"),
        ("Both", LearningRateRule.LINEAR, "the linear rule is the usual one, but may not fit Both"),
        ("AdamW", LearningRateRule.SQRT, "the sqrt rule fits AdamW"),
        ("AdamW", LearningRateRule.LINEAR, "--lr-rule sqrt"),
        ("SGD", LearningRateRule.SQRT, "--lr-rule linear"),
        ("FusedLAMB", LearningRateRule.NONE, "kept while the global batch changes by a factor of 2; --lr-rule sqrt"),
    ],
)
def test_the_remark_says_which_rule_fits(optimizer: str, rule: LearningRateRule, part: str) -> None:
    assert part in rule_remark(optimizer, rule, 2)


def test_the_remark_says_what_the_fitting_rule_would_make_of_the_rate() -> None:
    remark = rule_remark("AdamW", LearningRateRule.LINEAR, 16, learning_rate=0.001)
    assert remark.endswith("--lr-rule sqrt is better founded, and would make it 0.004")


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (128, None),
        (144, "the global batch is 9 times the original, .* or bound the batch with --max-batch 128"),
        (2, None),
        (1, "the global batch is 0.0625 times the original, .* or hold the batch with --global-batch 16"),
        (65536, "the global batch is 4096 times the original"),
    ],
)
def test_a_large_change_of_the_batch_is_warned_of(size: int, said: str | None) -> None:
    warning = trust_warning(Recipe(micro_batch_size=16), Recipe(micro_batch_size=size))
    assert warning is None if said is None else re.match(said, warning or "")


def test_the_bound_on_the_micro_batch_is_that_of_one_replica_and_pass() -> None:
    new = Recipe(micro_batch_size=64, accumulation_steps=2, world_size=2)
    assert str(trust_warning(Recipe(micro_batch_size=4, world_size=2), new)).endswith("--max-batch 16")


def test_a_global_batch_is_split_exactly_or_not_at_all() -> None:
    assert split_global_batch(32, 1, [1, 3, 8, 12, 32, 64]) == ((1, 32), (8, 4), (32, 1))
    assert split_global_batch(32, 4, [8, 4]) == ((8, 1), (4, 2))


def test_a_global_batch_that_replicas_cannot_share_is_refused() -> None:
    with pytest.raises(UsageError, match="global batch 30"):
        split_global_batch(30, 4, [1])


@given(st.integers(1, 4096), st.integers(1, 8), st.lists(SIZES, max_size=20))
def test_every_split_holds_the_global_batch(global_batch: int, world: int, sizes: list[int]) -> None:
    if global_batch % world:
        return
    assert all(size * steps * world == global_batch for size, steps in split_global_batch(global_batch, world, sizes))
