"""The speed of a recipe, told from all its runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memplan.recommend.speeds import fastest_run, unsteadiness
from memplan.results import OutcomeKind
from tests.making import trial

ONE, OTHER = trial(8, 500, samples_per_s=10.0), trial(8, 500, samples_per_s=8.0)


def test_the_fastest_run_of_the_same_recipe_counts_at_whatever_learning_rate() -> None:
    scaled = replace(OTHER, recipe=replace(OTHER.recipe, learning_rate=0.1))
    assert fastest_run(scaled.recipe, [scaled, ONE, trial(16, 700, samples_per_s=30.0)]) == 10.0


def test_a_run_that_did_not_fit_has_no_speed() -> None:
    broken = trial(8, 500, samples_per_s=10.0, kind=OutcomeKind.NON_FINITE_LOSS)
    assert fastest_run(broken.recipe, [broken]) is None


def test_runs_that_differ_by_a_fifth_are_steady_and_by_more_are_not() -> None:
    assert unsteadiness(ONE.recipe, [ONE, OTHER]) is None
    slower = trial(8, 500, samples_per_s=7.9)
    assert "7.90 and 10.0 samples/s" in (unsteadiness(ONE.recipe, [ONE, slower]) or "")


def test_one_run_says_nothing_of_steadiness() -> None:
    assert unsteadiness(ONE.recipe, [ONE, trial(4, 300, samples_per_s=1.0)]) is None


@pytest.mark.parametrize(
    ("step_times_s", "said"),
    [
        ((0.8, 0.8, 0.8), None),
        ((0.8, 0.8, 8.0), None),  # the median is what counts
        ((0.64, 0.8, 0.8), None),  # a fifth
        ((0.4, 0.8, 0.8), "Its steps ran 10.0 samples/s, but the fastest 20.0"),
    ],
)
def test_steps_of_the_fastest_run_are_held_against_its_fastest_step(
    step_times_s: tuple[float, ...], said: str | None
) -> None:
    assert ONE.outcome.measurement is not None
    timed = replace(ONE.outcome.measurement, step_times_s=step_times_s)
    fastest = replace(ONE, outcome=replace(ONE.outcome, measurement=timed))
    found = unsteadiness(ONE.recipe, [fastest, OTHER])
    assert found is None if said is None else said in (found or "")
