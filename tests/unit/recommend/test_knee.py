"""What the last doubling of the micro-batch gains."""

from __future__ import annotations

from memplan.recipe import Recipe
from memplan.recommend.knee import comparable, half_of, knee_reason, missing_half, smaller_in_band
from memplan.results import OutcomeKind
from tests.making import BAND, trial

CHOSEN = trial(24, 780, samples_per_s=20.0)


def test_a_doubling_that_gains_says_how_much() -> None:
    half = trial(12, 440, samples_per_s=16.0)
    reason = knee_reason(CHOSEN, [CHOSEN, half], BAND)
    assert reason == "Half as large, micro-batch 12, runs 16.0 samples/s: the larger one gains 25%."


def test_a_gain_beyond_tenfold_is_only_told_as_that() -> None:
    reason = knee_reason(CHOSEN, [CHOSEN, trial(12, 440, samples_per_s=0.2)], BAND)
    said = "Half as large, micro-batch 12, runs 0.200 samples/s"
    assert reason == f"{said}: the larger one is more than ten times as fast."


def test_a_run_of_about_half_is_called_so() -> None:
    reason = knee_reason(CHOSEN, [CHOSEN, trial(11, 400, samples_per_s=16.0)], BAND)
    assert reason == "About half as large, micro-batch 11, runs 16.0 samples/s: the larger one gains 25%."


def test_a_run_of_clearly_less_than_half_is_not_called_a_half() -> None:
    reason = knee_reason(CHOSEN, [CHOSEN, trial(10, 400, samples_per_s=16.0)], BAND)
    assert reason == "A smaller size, micro-batch 10, runs 16.0 samples/s: the larger one gains 25%."


def test_a_half_that_is_as_fast_below_the_band_is_named_with_its_option() -> None:
    half = trial(12, 440, samples_per_s=19.8)
    assert knee_reason(CHOSEN, [CHOSEN, half], BAND) == (
        "Half as large is as fast: micro-batch 12 runs 19.8 samples/s with 44% of the device, below the band; "
        "--min-util 0.4 recommends it."
    )


def test_a_half_that_is_faster_is_called_so() -> None:
    reason = knee_reason(CHOSEN, [CHOSEN, trial(12, 640, samples_per_s=22.0)], BAND)
    assert reason == "Half as large is faster: micro-batch 12 runs 22.0 samples/s with 64% of the device."


def test_a_half_that_is_faster_above_the_band_is_said_to_be_there() -> None:
    reason = knee_reason(CHOSEN, [CHOSEN, trial(12, 801, samples_per_s=22.0)], BAND)
    assert (
        reason == "Half as large is faster: micro-batch 12 runs 22.0 samples/s with 80% of the device, above the band."
    )


def test_any_smaller_size_that_is_faster_below_the_band_is_named_with_its_option() -> None:
    runs = [CHOSEN, trial(23, 599, samples_per_s=40.0), trial(12, 440, samples_per_s=16.0), trial(4, 200)]
    assert knee_reason(CHOSEN, runs, BAND) == (
        "A smaller size is faster: micro-batch 23 runs 40.0 samples/s with 59% of the device, below the band; "
        "--min-util 0.55 recommends it."
    )


def test_a_larger_size_that_is_faster_below_the_band_is_named_with_its_option() -> None:
    runs = [CHOSEN, trial(48, 590, samples_per_s=30.0), trial(12, 440, samples_per_s=16.0)]
    assert knee_reason(CHOSEN, runs, BAND) == (
        "A larger size is faster: micro-batch 48 runs 30.0 samples/s with 59% of the device, below the band; "
        "--min-util 0.55 recommends it."
    )
    inside = [CHOSEN, trial(48, 790, samples_per_s=30.0)]
    assert knee_reason(CHOSEN, inside, BAND) is None


def test_without_a_clearly_smaller_run_nothing_is_said() -> None:
    assert knee_reason(CHOSEN, [CHOSEN, trial(4, 200), trial(20, 700)], BAND) is None


def test_a_run_that_is_not_a_half_is_not_called_one() -> None:
    smaller = trial(18, 610, samples_per_s=16.0)
    reason = knee_reason(CHOSEN, [CHOSEN, smaller], BAND)
    assert reason == "A smaller size, micro-batch 18, runs 16.0 samples/s: the larger one gains 25%."
    reason = knee_reason(smaller, [CHOSEN, smaller], BAND)
    assert reason is None  # the larger one is faster, so it was not for its speed that the smaller one was chosen


def test_a_choice_that_is_not_a_half_of_what_is_slower_says_so() -> None:
    chosen = trial(18, 610, samples_per_s=25.0)
    reason = knee_reason(chosen, [CHOSEN, chosen], BAND)
    assert reason == "A larger size is slower: micro-batch 24 runs 20.0 samples/s."


SIZES = range(1, 100)


def test_half_is_the_smaller_size_to_run_where_the_band_holds_it() -> None:
    assert smaller_in_band(CHOSEN.recipe, [CHOSEN], SIZES, smallest_inside=5) == 12
    assert smaller_in_band(CHOSEN.recipe, [CHOSEN, trial(11, 620)], SIZES, smallest_inside=5) is None


def test_the_smallest_in_the_band_is_the_size_to_run_where_half_lies_below() -> None:
    assert smaller_in_band(CHOSEN.recipe, [CHOSEN, trial(12, 440)], SIZES, smallest_inside=16) == 16
    assert smaller_in_band(CHOSEN.recipe, [CHOSEN], [1, 3, 18, 24], smallest_inside=18) == 18


def test_a_size_in_the_band_that_is_hardly_smaller_is_not_worth_a_run() -> None:
    assert smaller_in_band(CHOSEN.recipe, [CHOSEN], SIZES, smallest_inside=20) is None
    assert smaller_in_band(CHOSEN.recipe, [CHOSEN], SIZES, smallest_inside=None) is None


def test_half_is_missing_until_a_size_near_it_was_run() -> None:
    assert missing_half(CHOSEN.recipe, [CHOSEN], SIZES) == 12
    assert missing_half(CHOSEN.recipe, [CHOSEN, trial(10, 400)], SIZES) is None
    assert missing_half(Recipe(micro_batch_size=1), [], SIZES) is None


def test_only_runs_that_differ_in_size_alone_are_compared_and_failed_ones_are_not() -> None:
    other_precision = trial(12, 300, precision="bf16")
    accumulated = trial(12, 440, accumulation_steps=2)
    failed = trial(12, None, kind=OutcomeKind.TIMEOUT)
    alike = trial(11, 420)
    assert comparable([CHOSEN, other_precision, accumulated, failed, alike], CHOSEN.recipe) == (alike, CHOSEN)


def test_splits_of_one_global_batch_are_compared_whatever_they_accumulate() -> None:
    chosen, half = trial(8, 700, accumulation_steps=2), trial(4, 400, accumulation_steps=4)
    assert half_of([chosen, half], chosen.recipe) is half
    assert half_of([chosen, trial(4, 400, accumulation_steps=2)], chosen.recipe) is not None


def test_of_several_halves_the_nearest_counts() -> None:
    ten, twelve, fourteen = (trial(size, 400) for size in (10, 12, 14))
    assert half_of([ten, fourteen, twelve], Recipe(micro_batch_size=24)) is twelve


def test_a_choice_that_is_half_of_what_is_no_faster_says_so() -> None:
    chosen, double = trial(12, 640, samples_per_s=20.0), trial(24, 780, samples_per_s=19.5)
    reason = knee_reason(chosen, [double, chosen], BAND)
    assert reason == "Twice as large is no faster: micro-batch 24 runs 19.5 samples/s."


def test_a_choice_that_is_half_of_what_is_faster_but_too_large_says_nothing() -> None:
    chosen, double = trial(12, 640, samples_per_s=20.0), trial(24, 900, samples_per_s=30.0)
    assert knee_reason(chosen, [double, chosen], BAND) is None
