"""What each precision is worth against fp32 on the same data and seed."""

from __future__ import annotations

import pytest

from memplan.recipe import Precision, Recipe
from memplan.recommend.verdicts import judge, loss_deviation
from memplan.results import OutcomeKind
from tests.making import BAND, trial

CHOSEN = Recipe(micro_batch_size=12)


def test_the_deviation_is_the_largest_relative_difference_of_a_step() -> None:
    assert loss_deviation((2.0, 1.1, 0.5), (2.0, 1.0, 0.5)) == pytest.approx(0.1)


def test_steps_that_are_not_finite_are_not_compared() -> None:
    assert loss_deviation((float("nan"), 1.0), (1.0, 1.0)) == 0.0
    assert loss_deviation((float("nan"),), (1.0,)) is None


def test_a_precision_is_compared_at_the_micro_batch_of_the_reference() -> None:
    reference = trial(4, 500, losses=(2.0, 1.0), samples_per_s=10)
    half = [
        trial(4, 300, precision="bf16", losses=(2.0, 1.02), samples_per_s=15),
        trial(12, 700, precision="bf16", losses=(9.0, 9.0), samples_per_s=16),
    ]
    verdict = judge(Precision.BF16, [reference, *half], chosen=CHOSEN, reference=reference, band=BAND)
    assert verdict.best is half[1]
    assert verdict.loss_deviation == pytest.approx(0.02)
    assert verdict.remark == "50% less tensor memory, 1.50x the speed of fp32 at micro-batch 4"


def test_runs_are_compared_at_the_largest_micro_batch_of_both() -> None:
    """At small ones what is not the kernels' takes much of a step."""
    reference, larger = trial(4, 700, samples_per_s=10.0), trial(16, 900, samples_per_s=20.0)
    half = [trial(4, 350, precision="bf16", samples_per_s=8.0), trial(16, 500, precision="bf16", samples_per_s=30.0)]
    verdict = judge(Precision.BF16, [reference, larger, *half], chosen=CHOSEN, reference=reference, band=BAND)
    assert verdict.remark == "50% less tensor memory, 1.50x the speed of fp32 at micro-batch 16"
    assert verdict.speed_ratio == 1.5


def test_the_reference_itself_is_not_compared() -> None:
    reference = trial(4, 700)
    verdict = judge(Precision.FP32, [reference], chosen=CHOSEN, reference=reference, band=BAND)
    assert (verdict.loss_deviation, verdict.remark) == (None, "the reference")


def test_a_precision_that_is_too_slow_says_so_with_its_evidence() -> None:
    slow = trial(4, None, precision="fp16", kind=OutcomeKind.TIMEOUT, evidence="step 1 still running after 10 s")
    verdict = judge(Precision.FP16, [trial(4, 700), slow], chosen=CHOSEN, reference=trial(4, 700), band=BAND)
    assert verdict.best is None
    assert verdict.remark == "too slow here: step 1 still running after 10 s"


def test_where_a_global_batch_is_held_the_best_of_a_precision_is_a_split_of_it() -> None:
    reference, split = trial(32, 900), trial(25, 700, accumulation_steps=4)
    chosen = Recipe(micro_batch_size=50, accumulation_steps=2, precision="bf16")
    verdict = judge(Precision.FP32, [reference, split], chosen=chosen, reference=reference, band=BAND)
    assert (verdict.best, verdict.remark) == (split, "the reference")


def test_without_fp32_there_is_nothing_to_compare_with() -> None:
    run = trial(4, 700, precision="bf16")
    verdict = judge(Precision.BF16, [run], chosen=run.recipe, reference=None, band=BAND)
    assert (verdict.best, verdict.remark) == (run, "no fp32 run to compare with")


def test_a_precision_that_was_not_tried_says_so() -> None:
    assert judge(Precision.BF16, [], chosen=CHOSEN, reference=None, band=BAND).remark == "not tried"


def test_where_no_micro_batch_ran_in_both_nothing_is_compared() -> None:
    reference, half = trial(4, 700), trial(16, 700, precision="bf16")
    verdict = judge(Precision.BF16, [reference, half], chosen=CHOSEN, reference=reference, band=BAND)
    assert (verdict.best, verdict.speed_ratio) == (half, None)
    assert verdict.remark == "no micro-batch at which both bf16 and the reference ran"
