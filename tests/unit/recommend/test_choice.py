"""The choice: band first, then throughput, the smaller of equals, the user's own recipe where it is as good."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memplan.recipe import Precision, Recipe
from memplan.recommend.choice import choose, explain
from memplan.results import OutcomeKind
from tests.making import BAND, trial

CURRENT = Recipe(micro_batch_size=4)


def test_a_recipe_in_the_band_beats_a_faster_one_below_it() -> None:
    below, inside = trial(4, 300, samples_per_s=20), trial(12, 700, samples_per_s=10)
    assert choose([below, inside], BAND, current=CURRENT) is inside


def test_the_faster_recipe_in_the_band_wins() -> None:
    slow, fast = trial(12, 620, samples_per_s=10), trial(14, 780, samples_per_s=11)
    assert choose([slow, fast], BAND, current=CURRENT) is fast


def test_a_recipe_is_as_fast_as_its_fastest_run_because_disturbances_only_slow_one() -> None:
    fast, disturbed = trial(14, 700, samples_per_s=30), trial(14, 700, samples_per_s=4)
    rival = trial(12, 700, samples_per_s=20)
    assert choose([fast, disturbed, rival], BAND, current=CURRENT).recipe.micro_batch_size == 14
    reasons = explain(disturbed, [fast, disturbed, rival], BAND, current=CURRENT)
    assert reasons[1] == "At 30.0 samples/s it is the fastest of 2 recipes there."
    assert reasons[2].startswith("Runs of this recipe came to 4.00 and 30.0 samples/s")


def test_within_three_percent_the_smaller_recipe_wins() -> None:
    small, large = trial(12, 620, samples_per_s=10.0), trial(14, 780, samples_per_s=10.2)
    assert choose([large, small], BAND, current=CURRENT) is small


def test_the_users_own_recipe_is_kept_where_it_is_as_good() -> None:
    own, other = trial(4, 790, samples_per_s=10.0), trial(3, 620, samples_per_s=10.2)
    assert choose([own, other], BAND, current=CURRENT) is own


def test_nothing_above_the_band_is_recommended() -> None:
    assert choose([trial(4, 801)], BAND, current=CURRENT) is None


def test_a_trial_that_did_not_fit_is_never_recommended() -> None:
    broken = trial(4, 700, kind=OutcomeKind.NON_FINITE_LOSS)
    assert choose([broken, trial(9, None, kind=OutcomeKind.HOST_OUT_OF_MEMORY)], BAND, current=CURRENT) is None


@pytest.mark.parametrize(
    ("speed_of_the_larger", "chosen", "said"),
    [(20, 2, "this is the nearest below it"), (10.2, 1, "what comes nearer to it is no faster")],
)
def test_where_nothing_reaches_the_band_a_larger_size_is_taken_if_it_is_faster(
    speed_of_the_larger: float, chosen: int, said: str
) -> None:
    trials = [trial(1, 200, samples_per_s=10), trial(2, 400, samples_per_s=speed_of_the_larger)]
    found = choose(trials, BAND, current=CURRENT)
    assert found.recipe.micro_batch_size == chosen
    assert f"Nothing that was tried reaches the band; {said}." in explain(found, trials, BAND, current=CURRENT)


def test_a_recipe_that_reached_the_band_before_its_last_run_is_not_said_to_have_missed_it() -> None:
    searched, final = trial(12, 602), trial(12, 598)
    reasons = explain(final, [trial(20, 700, samples_per_s=8), searched, final], BAND, current=CURRENT)
    assert reasons[1] == "Runs before it reached the band; run as it is recommended, it stays just below."


def test_the_reasons_name_peak_share_and_gain_over_the_current_recipe() -> None:
    now, new = trial(4, 300, samples_per_s=10), trial(12, 700, samples_per_s=15)
    assert explain(new, [now, new], BAND, current=CURRENT) == (
        "It peaks at 700.0 MiB, 70% of 1000.0 MiB (60% to 80% wanted).",
        "The current recipe runs 10.0 samples/s; this is 1.50 times that.",
    )


def test_no_gain_is_told_where_runs_of_one_recipe_differ_by_half() -> None:
    now, again, new = (trial(size, 700, samples_per_s=speed) for size, speed in ((4, 10), (4, 16), (12, 30)))
    told = [explain(new, [*runs, new], BAND, current=CURRENT) for runs in ([again], [now, again])]
    assert [any("times that" in each for each in reasons) for reasons in told] == [True, False]


def test_a_gain_that_no_recipe_explains_is_not_told_in_figures() -> None:
    now, new = trial(4, 300, samples_per_s=10), trial(12, 700, samples_per_s=1000)
    assert "this is more than ten times that." in explain(new, [now, new], BAND, current=CURRENT)[-1]


def test_a_choice_that_is_slower_than_what_runs_now_says_why() -> None:
    now, new = trial(4, 300, samples_per_s=20), trial(12, 700, samples_per_s=10)
    said = "The current recipe runs 20.0 samples/s; this is 0.50 times that, since the band comes first."
    assert said in explain(new, [now, new], BAND, current=CURRENT)


def test_a_run_that_only_shows_accumulation_is_no_rival() -> None:
    chosen, shown = trial(12, 700, samples_per_s=10), trial(12, 710, accumulation_steps=2, samples_per_s=20)
    reasons = explain(chosen, [chosen, shown], BAND, current=CURRENT)
    assert reasons == ("It peaks at 700.0 MiB, 70% of 1000.0 MiB (60% to 80% wanted).",)


def test_a_slower_choice_says_how_much_of_the_fastest_it_reaches() -> None:
    small, large = trial(12, 620, samples_per_s=9.8), trial(14, 780, samples_per_s=10.0)
    reasons = explain(small, [large, small], BAND, current=CURRENT)
    assert "At 9.80 samples/s it is at 98% of the fastest of 2 recipes there." in reasons
    nearly = trial(12, 620, samples_per_s=9.98)
    assert "At 9.98 samples/s it is as fast as the fastest of 2 recipes there." in explain(
        nearly, [large, nearly], BAND, current=CURRENT
    )


def test_the_current_recipe_is_compared_with_even_where_it_was_no_candidate() -> None:
    now, split = trial(4, 300, samples_per_s=10), trial(8, 700, accumulation_steps=4, samples_per_s=20)
    assert explain(split, [now, split], BAND, current=CURRENT)[-1].endswith("10.0 samples/s; this is 2.00 times that.")


def test_a_larger_size_that_failed_for_another_reason_than_memory_is_named() -> None:
    current, broken = trial(4, 300), trial(12, None, kind=OutcomeKind.USER_ERROR)
    said = "Micro-batch 12 ended as user error, so that no larger one was judged: "
    assert any(each.startswith(said) for each in explain(current, [current, broken], BAND, current=CURRENT))
    in_bf16 = replace(broken, recipe=replace(broken.recipe, precision=Precision.BF16))
    too_large = trial(12, None, kind=OutcomeKind.HOST_OUT_OF_MEMORY)
    smaller = trial(2, None, kind=OutcomeKind.USER_ERROR)
    for other in (in_bf16, too_large, smaller):
        assert not any("judged" in each for each in explain(current, [current, other], BAND, current=CURRENT))
