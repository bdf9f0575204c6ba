"""The trials of one run on a device that is simulated below the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from memplan.planning.absent import check_on_cpu
from memplan.planning.trials import session as sessions
from memplan.planning.trials.session import TrialSession
from memplan.probe.journal import Journal
from memplan.probe.trials import StepLimit
from memplan.progress import Notice
from memplan.recipe import Recipe
from memplan.results import Outcome, OutcomeKind
from memplan.units import MIB
from tests.making import CARD, measurement, question, subject

if TYPE_CHECKING:
    from pathlib import Path

DISTURBED = Outcome(
    kind=OutcomeKind.DEVICE_OUT_OF_MEMORY,
    evidence="CUDA out of memory",
    duration_s=1.0,
    others_before_bytes=0,
    others_after_bytes=500 * MIB,
)
FITS = Outcome(kind=OutcomeKind.FITS, evidence="", duration_s=1.0, measurement=measurement(700))


class Untraceable:
    def estimate_if_traceable(self, recipe: Recipe) -> None:
        return None


@pytest.fixture
def heard() -> list[object]:
    return []


@pytest.fixture
def session_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heard: list[object]):
    """A session whose trials end as listed, one after another."""

    def make(*endings: Outcome) -> TrialSession:
        left = list(endings)
        monkeypatch.setattr(sessions, "run_in_turn", lambda request, **_: left.pop(0))
        asked = question(subject(Recipe(micro_batch_size=4)), device=CARD)
        return TrialSession(asked, Journal(tmp_path).open_run("f", {}), Untraceable(), heard.append)

    return make


def test_a_trial_that_neighbours_disturbed_is_run_once_more_and_the_second_counts(session_on, heard) -> None:
    session = session_on(DISTURBED, FITS)
    assert session.try_recipe(Recipe(micro_batch_size=4), "current recipe").fits
    assert len(session.trials) == 1
    notices = [each.text for each in heard if isinstance(each, Notice)]
    assert notices == ["trial 1 is run again: CUDA out of memory"]


def test_a_trial_that_is_disturbed_twice_is_taken_as_it_is(session_on) -> None:
    session = session_on(DISTURBED, DISTURBED)
    assert session.try_recipe(Recipe(micro_batch_size=4), "current recipe").outcome.kind.is_too_large


def test_the_check_on_the_cpu_is_small_and_does_not_wait_for_a_step_without_end(session_on, monkeypatch) -> None:
    session, asked = session_on(FITS), []
    monkeypatch.setattr(sessions, "run_in_turn", lambda request, **_: asked.append(request) or FITS)
    check_on_cpu(subject(Recipe(micro_batch_size=64)), session)
    assert [(each.recipe.micro_batch_size, each.step_limit) for each in asked] == [(2, StepLimit(limit_s=30.0))]
    assert not asked[0].runs_compiled  # no more than a trace for the CPU is


def test_steps_of_several_passes_are_fewer(session_on, monkeypatch) -> None:
    session, asked = session_on(FITS), []
    monkeypatch.setattr(sessions, "run_in_turn", lambda request, **_: asked.append(request) or FITS)
    session.try_recipe(Recipe(micro_batch_size=4), "current recipe")
    session.try_recipe(Recipe(micro_batch_size=4, accumulation_steps=2), "accumulation")
    assert [(each.warmup_steps, each.timed_steps) for each in asked] == [(2, 3), (1, 2)]


def test_each_recipe_runs_once(session_on) -> None:
    session = session_on(FITS)
    first = session.try_recipe(Recipe(micro_batch_size=4), "current recipe")
    assert session.try_recipe(Recipe(micro_batch_size=4), "same size") is first
