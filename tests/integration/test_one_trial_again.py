"""`memplan trial`: what the journal kept of a trial is enough to run it again, exactly as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from memplan.errors import UsageError
from memplan.planning.trials import rerun
from memplan.probe.journal import Journal
from memplan.probe.trials import StepLimit
from memplan.recipe import Recipe
from memplan.results import Outcome, OutcomeKind
from tests.integration.conftest import memplan
from tests.making import CARD, CPU, REQUEST, ignore, reference, trial

if TYPE_CHECKING:
    from memplan.devices.cards import DeviceSpec

WORKLOADS = Path(__file__).parents[1] / "contract"


def stored(store: Path, function: str, kind: OutcomeKind, device: DeviceSpec = CPU, **limits: float) -> str:
    source = reference(f"trial_workloads:{function}", WORKLOADS)
    asked = replace(REQUEST, source=source, recipe=Recipe(micro_batch_size=8), device=device, **limits)
    ended = Outcome(kind=kind, evidence="as it was", duration_s=1.0, log_tail="what was said then\n")
    kept = replace(trial(8, None), outcome=ended)
    with Journal(store).open_run("f", {}) as run:
        run.record(kept, asked)
        return run.run_id


@pytest.mark.slow
def test_a_hang_run_again_hangs_again_and_shows_where(tmp_path: Path) -> None:
    run_id = stored(tmp_path, "hangs", OutcomeKind.TIMEOUT, step_limit=StepLimit(limit_s=1.0))
    ended = memplan("trial", run_id, "1", "--store", tmp_path, cwd=tmp_path)
    assert ended.status == 0, ended.err
    assert "as it was" in ended.out
    assert "step 1 still running after 1 s" in ended.out
    assert "in wait_for_a_lock_that_nobody_releases" in ended.out


@pytest.mark.slow
def test_a_bug_that_was_mended_shows_its_memory_now(tmp_path: Path) -> None:
    run_id = stored(tmp_path, "fits", OutcomeKind.USER_ERROR)
    ended = memplan("trial", run_id, "1", "--store", tmp_path, "--json", cwd=tmp_path)
    assert ended.status == 0, ended.err
    assert ended.document["trial"]["outcome"]["kind"] == "user error"
    assert ended.document["again"]["outcome"]["kind"] == "fits"
    assert ended.document["again"]["outcome"]["measurement"]["breakdown"]["parameters"] == 1 << 20
    assert Journal(tmp_path).load_trial(run_id, 1).trial.outcome.kind is OutcomeKind.USER_ERROR


def test_a_trial_of_a_card_is_not_run_on_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = replace(CARD, name="NVIDIA A100", live_index=1)
    run_id = stored(tmp_path, "fits", OutcomeKind.FITS, device=card)
    present = replace(card, name="NVIDIA GeForce RTX 3090")
    asked: list[str] = []

    def resolve(text: str) -> DeviceSpec:
        asked.append(text)
        return present

    monkeypatch.setattr(rerun, "resolve_device", resolve)
    with pytest.raises(UsageError, match="trial 1 ran on NVIDIA A100, and cuda:1 is NVIDIA GeForce RTX 3090 now"):
        rerun.rerun_trial(tmp_path, run_id, 1, ignore)
    assert asked == ["cuda:1"]


def test_a_trial_is_looked_at_without_being_run(tmp_path: Path) -> None:
    run_id = stored(tmp_path, "hangs", OutcomeKind.TIMEOUT)
    ended = memplan("trial", run_id, "1", "--look", "--store", tmp_path, cwd=tmp_path)
    assert ended.status == 0, ended.err
    assert "what was said then" in ended.out


def test_a_number_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    run_id = stored(tmp_path, "fits", OutcomeKind.FITS)
    ended = memplan("trial", run_id, "9", "--store", tmp_path, cwd=tmp_path)
    assert ended.status == 2
    assert "has no trial 9" in ended.err
