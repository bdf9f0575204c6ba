"""What commands find in the journal, and what they are told where it is not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from memplan.errors import PatchError, UsageError
from memplan.patches import ConfigPatch
from memplan.planning.stored_runs import stored_patch, stored_plan, stored_report
from memplan.probe.journal import Journal
from memplan.recipe import Recipe
from memplan.results import RunStatus
from tests.making import REQUEST, plan, trial

if TYPE_CHECKING:
    from pathlib import Path

    from memplan.plans import Plan

NOW, THEN = Recipe(micro_batch_size=4), Recipe(micro_batch_size=16)
PATCH = ConfigPatch(files=(), diff="", root_path="/", changes=(), verified_by="us")


def finished(store: Path, made: Plan | None) -> str:
    with Journal(store).open_run("f", {}) as run:
        run.record(trial(4, 400), REQUEST)
        run.finish(made)
        return run.run_id


def test_an_interrupted_run_points_to_the_last_that_has_a_patch(tmp_path: Path) -> None:
    with_patch = finished(tmp_path, plan(NOW, THEN, config_patch=PATCH))
    with pytest.raises(KeyboardInterrupt), Journal(tmp_path).open_run("g", {}):
        raise KeyboardInterrupt
    with pytest.raises(
        PatchError, match="was not finished; the same probe command resumes it; the last run with a "
    ) as raised:
        stored_patch(tmp_path, "last")
    assert str(raised.value).endswith(with_patch)


def test_the_patch_is_that_of_the_runs_plan(tmp_path: Path) -> None:
    run_id = finished(tmp_path, plan(NOW, THEN, config_patch=PATCH))
    assert stored_patch(tmp_path, run_id) == stored_patch(tmp_path, "last") == PATCH


def test_a_run_without_a_patch_points_to_the_last_that_has_one(tmp_path: Path) -> None:
    with_patch = finished(tmp_path, plan(NOW, THEN, config_patch=PATCH))
    without = finished(tmp_path, plan(NOW, NOW, config_path="/x/config.yaml"))
    said = f"run {without} has no patch: its plan changes nothing; the last run with a patch is {with_patch}"
    with pytest.raises(PatchError, match=said):
        stored_patch(tmp_path, "last")


@pytest.mark.parametrize(
    ("config_path", "said"), [("/x/config.yaml", "none could be made"), (None, "it has no config to change")]
)
def test_a_change_without_a_patch_says_why_there_is_none(tmp_path: Path, config_path: str | None, said: str) -> None:
    finished(tmp_path, plan(NOW, THEN, config_path=config_path))
    with pytest.raises(PatchError, match=f"has no patch: {said}"):
        stored_patch(tmp_path, "last")


def test_a_run_that_was_interrupted_is_to_be_resumed_before_its_patch_is_applied(tmp_path: Path) -> None:
    with Journal(tmp_path).open_run("f", {}) as run:
        run.record(trial(4, 400), REQUEST)
    with pytest.raises(PatchError, match="was not finished; the same probe command resumes it"):
        stored_patch(tmp_path, "last")


def test_an_interrupted_run_is_reported_by_the_trials_that_it_has(tmp_path: Path) -> None:
    with Journal(tmp_path).open_run("f", {}) as run:
        run.record(trial(4, 400), REQUEST)
    report = stored_report(tmp_path, "last")
    assert [each.recipe for each in report.trials] == [NOW]
    assert report.plan is None


def test_a_run_that_failed_is_reported_with_what_was_said_then(tmp_path: Path) -> None:
    with Journal(tmp_path).open_run("f", {}) as run:
        run.finish(None, failure="nothing fits")
    report = stored_report(tmp_path, "last")
    assert (report.status, report.failure) == (RunStatus.FAILED, "nothing fits")
    with pytest.raises(PatchError, match="has no patch: it came to no plan"):
        stored_patch(tmp_path, "last")


def test_a_run_that_was_to_make_no_plan_has_none_to_check(tmp_path: Path) -> None:
    run_id = finished(tmp_path, None)
    with pytest.raises(UsageError, match=f"run {run_id} came to no plan"):
        stored_plan(tmp_path, "last")
