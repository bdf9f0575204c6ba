from __future__ import annotations

from memplan.planning.trials.step_limits import step_limit
from memplan.probe.trials import StepLimit
from memplan.recipe import Precision, Recipe
from tests.making import trial

REFERENCE = trial(5, 500)  # whose steps take half a second


def test_another_precision_may_take_ten_times_as_long_once_and_three_times_twice() -> None:
    assert step_limit(REFERENCE, Recipe(micro_batch_size=40, precision="bf16"), may_pause=False) == StepLimit(
        limit_s=40.0, usual_s=4.0, usual_precision=Precision.FP32, slow_s=12.0
    )


def test_short_steps_are_waited_for_however_slow() -> None:
    assert step_limit(REFERENCE, Recipe(micro_batch_size=5, precision="bf16"), may_pause=False) == StepLimit(
        limit_s=10.0, usual_s=0.5, usual_precision=Precision.FP32, slow_s=2.0
    )


def test_a_recipe_of_the_same_precision_is_held_to_hanging_only() -> None:
    assert step_limit(REFERENCE, Recipe(micro_batch_size=40), may_pause=False) == StepLimit(
        limit_s=120.0, usual_s=4.0, usual_precision=Precision.FP32
    )


def test_where_a_step_may_hold_an_evaluation_only_two_slow_ones_end_a_trial() -> None:
    assert step_limit(REFERENCE, Recipe(micro_batch_size=40), may_pause=True) == StepLimit(
        limit_s=None, usual_s=4.0, usual_precision=Precision.FP32, slow_s=120.0
    )
    assert step_limit(REFERENCE, Recipe(micro_batch_size=5, precision="bf16"), may_pause=True) == StepLimit(
        limit_s=None, usual_s=0.5, usual_precision=Precision.FP32, slow_s=2.0
    )
