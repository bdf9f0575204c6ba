"""A plan's note on evaluation between steps."""

from __future__ import annotations

from dataclasses import replace

from memplan.planning.evaluation_peak import evaluation_peak_notes
from memplan.recipe import Recipe
from memplan.results import Phase
from tests.making import estimate


def test_a_peak_in_evaluation_is_said_with_what_helps_and_any_other_is_not() -> None:
    in_backward = replace(estimate(600, Recipe(micro_batch_size=8)), peak_phase=Phase.BACKWARD)
    (note,) = evaluation_peak_notes([None, in_backward, replace(in_backward, peak_phase=Phase.EVALUATION)])
    assert note.startswith("the peak falls into evaluation: ")
    assert evaluation_peak_notes([None, in_backward]) == ()
