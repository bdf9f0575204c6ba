"""Limits of one recipe's steps that follow from a trial of another."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.planning.trials.step_limits import step_limit
from memplan.probe.trials import StepLimit
from memplan.recipe import Precision, Recipe
from tests.making import measurement, trial

if TYPE_CHECKING:
    from memplan.results import Trial

REFERENCE = trial(4, 700)


def with_times(*, warmup: tuple[float, ...], timed: tuple[float, ...]) -> Trial:
    times = {"warmup_times_s": warmup, "step_times_s": timed}
    return replace(REFERENCE, outcome=replace(REFERENCE.outcome, measurement=replace(measurement(700), **times)))


def test_a_warm_up_step_may_take_what_the_reference_took_to_compile_three_times_over() -> None:
    reference = with_times(warmup=(42.0, 3.0), timed=(2.0, 2.0, 2.0))
    assert step_limit(reference, Recipe(micro_batch_size=8)) == StepLimit(
        limit_s=120.0, usual_s=4.0, usual_precision=Precision.FP32, warmup_extra_s=120.0
    )


def test_where_warm_up_is_no_slower_its_limit_is_that_of_every_step() -> None:
    for warmup in ((), (1.0, 2.0)):
        limit = step_limit(with_times(warmup=warmup, timed=(2.0, 2.0, 2.0)), Recipe(micro_batch_size=8))
        assert limit is not None
        assert limit.warmup_extra_s == 0
