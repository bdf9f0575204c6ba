"""How far a plan goes for a card that is not present, on predictions that follow a straight line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from memplan.devices.cards import find_card
from memplan.planning.absent import recommend_by_estimate
from memplan.recipe import Precision, Recipe
from memplan.units import MIB
from tests.making import estimate, question, subject, trial

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memplan.estimators import TracedSetting

CHECK = trial(2, 102, estimated_mib=102)


@dataclass(frozen=True)
class Prediction:
    """Answers like traces: 100 MiB, and so many a sample."""

    mib_per_sample: float
    samples: int | None = None

    def training_samples(self, recipe: Recipe) -> int | None:
        return self.samples

    def make_ahead(self, settings: Iterable[TracedSetting]) -> None:
        pass

    def of_if_traceable(self, recipe: Recipe):
        return estimate(100, recipe)

    def process_peak(self, recipe: Recipe):
        return lambda size: round((100 + self.mib_per_sample * size) * MIB)

    def estimate(self, recipe: Recipe):
        return estimate(round(100 + self.mib_per_sample * recipe.micro_batch_size), recipe)

    def optimizer_name(self, recipe: Recipe) -> str:
        return "SGD"

    def uses_batch_norm(self, recipe: Recipe) -> bool:
        return False


class Session:
    """Answers like a trial session whose one trial is the check."""

    trials = (CHECK,)

    def try_recipe(self, recipe: Recipe, purpose: str, *, step_limit: object, runs_compiled: bool):
        assert not runs_compiled
        return CHECK


def recommended(
    mib_per_sample: float, *, now: int = 4, rate: float | None = 0.1, samples: int | None = None, **options: object
):
    asked = question(subject(Recipe(micro_batch_size=now, learning_rate=rate)), precisions=(Precision.FP32,), **options)
    return recommend_by_estimate(asked, Prediction(mib_per_sample, samples), Session())


def test_the_band_is_filled_where_it_can_be_reached() -> None:
    found = recommended(7)
    assert (found.recipe.micro_batch_size, found.recipe.learning_rate) == (100, 2.5)
    assert found.notes[0].startswith("the global batch is 25 times the original")


def test_a_band_out_of_reach_is_no_reason_to_go_further_than_rates_can_follow() -> None:
    found = recommended(0.1)  # 4096 samples take 510 MiB
    assert (found.recipe.micro_batch_size, found.recipe.learning_rate) == (32, 0.8)
    assert found.reasons[1].startswith("No micro-batch up to 4096 reaches the band: 32 is the most for which a rule")
    assert not any("times the original" in note for note in found.notes)


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"rate": None}, 4096),  # nothing is scaled
        ({"micro_batch_cap": 20}, 20),
        ({"global_batch_size": 1024}, 1024),
    ],
)
def test_whoever_has_no_rate_or_names_the_batch_gets_it(options: dict[str, int | None], size: int) -> None:
    assert recommended(0.1, **options).recipe.micro_batch_size == size


def test_the_largest_that_may_be_considered_is_named() -> None:
    assert "Larger micro-batches than 20 are not looked at." in recommended(7, micro_batch_cap=20).reasons


def test_no_larger_batch_is_planned_than_the_training_set_fills() -> None:
    found = recommended(7, samples=80)
    assert found.recipe.micro_batch_size == 80
    assert "The training set has 80 samples: they fill no larger micro-batch." in found.reasons


def test_without_a_limit_a_batch_of_many_thousands_is_not_made_smaller() -> None:
    found = recommended(0.001, now=10_000, rate=None)
    assert found.recipe.micro_batch_size == 80_000
    assert "Larger micro-batches than 80000 are not looked at." in found.reasons


def test_the_users_own_precision_is_kept_whatever_it_is_compared_with() -> None:
    now = Recipe(micro_batch_size=4, precision=Precision.BF16)
    compared = (Precision.FP32, Precision.BF16, Precision.FP16)
    asked = question(subject(now), device=find_card("t4"), precisions=compared)
    found = recommend_by_estimate(asked, Prediction(7), Session())
    assert found.recipe.precision is Precision.BF16
    assert [each.precision for each in found.verdicts] == list(compared)


def test_without_the_users_own_the_first_precision_that_is_asked_for_is_taken() -> None:
    now = Recipe(micro_batch_size=4, precision=Precision.BF16)
    asked = question(subject(now), device=find_card("t4"), precisions=(Precision.FP16,))
    found = recommend_by_estimate(asked, Prediction(7), Session())
    assert found.recipe.precision is Precision.FP16
