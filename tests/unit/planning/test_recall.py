"""A plan that was made before is given out again where it still holds, and only there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from memplan.configs import apply_patch, read_config
from memplan.devices.card_readings import BytesReading
from memplan.planning import recall
from memplan.planning.recall import recalled
from memplan.planning.subject import subject_of_config
from memplan.planning.writing.patching import write_patch
from memplan.plans import PlanRequest
from memplan.probe.journal import Journal
from memplan.recipe import Recipe
from memplan.units import MIB
from tests.making import BAND, CARD, plan, question

if TYPE_CHECKING:
    from pathlib import Path

    from memplan.planning.subject import Subject
    from memplan.plans import Plan

THEN = Recipe(micro_batch_size=12)


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    (tmp_path / "x.yaml").write_text("batch_size: 4\n")
    keys = {"micro_batch_size": "batch_size"}
    return subject_of_config(read_config(tmp_path / "x.yaml", knob_keys=keys, workload_target="net:make"))


@pytest.fixture
def journal(tmp_path: Path, subject: Subject) -> Journal:
    """The journal after one plan, under the fingerprint ``asked``."""
    patch = write_patch(THEN, subject, PlanRequest(), why="peaks at 70% of 1000 MiB")
    request = PlanRequest(store=tmp_path / "store")
    return store(Journal(tmp_path / "store"), plan(subject.current, THEN, config_patch=patch, request=request))


def store(journal: Journal, made: Plan, fingerprint: str = "asked") -> Journal:
    with journal.open_run(fingerprint, {}) as run:
        run.finish(replace(made, run_id=run.run_id))
    return journal


def test_the_same_question_gets_the_same_plan_marked_with_when_it_was_made(journal: Journal, subject: Subject) -> None:
    stored = journal.find_plan("asked")
    found = recalled(journal, "asked", question(subject))
    assert stored is not None
    assert found is not None
    assert found.cached_from == stored.created_at
    assert replace(found, cached_from=None) == stored.plan


def test_another_question_gets_none(journal: Journal, subject: Subject) -> None:
    assert recalled(journal, "asked otherwise", question(subject)) is None


def test_a_run_that_came_to_no_plan_answers_nothing(tmp_path: Path, subject: Subject) -> None:
    journal = Journal(tmp_path / "other")
    with journal.open_run("asked", {}) as run:
        run.finish(None)
    assert recalled(journal, "asked", question(subject)) is None


def test_without_a_journal_there_is_none_and_none_is_made(tmp_path: Path, subject: Subject) -> None:
    assert recalled(Journal(tmp_path / "nowhere"), "asked", question(subject)) is None
    assert not (tmp_path / "nowhere").exists()


def test_a_plan_that_is_given_out_again_is_the_last_run(journal: Journal, subject: Subject) -> None:
    store(journal, plan(subject.current, Recipe(micro_batch_size=5)), "something else")
    found = recalled(journal, "asked", question(subject))
    assert found is not None
    assert journal.load("last").run_id == found.run_id


@pytest.mark.parametrize(("total_mib", "holds"), [(1100, True), (800, False), (2000, False)])
def test_a_budget_that_was_left_open_must_still_hold_the_peak_in_the_band(
    journal: Journal, subject: Subject, total_mib: int, holds: bool
) -> None:
    band = replace(BAND, total_bytes=total_mib * MIB)  # 700 MiB are 64 %, 88 % and 35 % of it
    assert (recalled(journal, "asked", question(subject, band=band)) is not None) is holds


@pytest.mark.parametrize(("used_mib", "holds"), [(0, True), (90, True), (200, False)])
def test_neighbours_that_came_to_the_card_make_a_plan_hold_no_more(
    journal: Journal, subject: Subject, used_mib: int, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall, "device_used_bytes", lambda index: BytesReading(read_bytes=used_mib * MIB))
    assert (recalled(journal, "asked", question(subject, device=CARD)) is not None) is holds


def test_a_patch_is_written_anew_for_a_file_whose_comments_changed(journal: Journal, subject: Subject) -> None:
    assert subject.config is not None
    subject.config.path.write_text("# ours\nbatch_size: 4\n")
    keys = {"micro_batch_size": "batch_size"}
    again = subject_of_config(read_config(subject.config.path, knob_keys=keys, workload_target="net:make"))
    found = recalled(journal, "asked", question(again))
    assert found is not None
    assert found.config_patch is not None
    apply_patch(found.config_patch)
    assert subject.config.path.read_text().startswith("# ours\nbatch_size: 12\n")
    stored = journal.find_plan("asked")
    assert stored is not None
    assert stored.plan == replace(found, cached_from=None)  # what `memplan apply` will find
