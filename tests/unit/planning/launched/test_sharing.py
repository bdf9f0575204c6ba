"""One plan for all ranks: who makes it, who waits, and what becomes of them when it does not come."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from memplan.errors import LaunchError, MemplanError, NothingFitsError
from memplan.launchers import Launch
from memplan.planning.launched.plan_exchange import Announcement, Answer, PlanExchange
from memplan.planning.launched.sharing import make_for_all, wait_for
from memplan.probe.records import to_json
from memplan.process_identity import ProcessIdentity, identity_of, this_process
from memplan.recipe import Recipe
from tests.making import ignore, plan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from memplan.plans import Plan

PLAN = plan(Recipe(micro_batch_size=4), Recipe(micro_batch_size=12))


def launch(rank: int, run_name: str = "run") -> Launch:
    return Launch(rank=rank, world_size=2, local_world_size=2, run_name=run_name)


@pytest.fixture
def exchange(tmp_path: Path) -> PlanExchange:
    return PlanExchange(tmp_path / "store", launch(0), 1)


@pytest.fixture
def ended() -> ProcessIdentity:
    """A process of this machine that was started after this one, and has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        return identity_of(child.pid)


def leave(exchange: PlanExchange, by: ProcessIdentity, announced_at: float, *, answered: bool) -> None:
    """Leave the files of another rank 0."""
    exchange.announcement_path.parent.mkdir(parents=True)
    exchange.announcement_path.write_text(to_json(Announcement(by=by, announced_at=announced_at)))
    if answered:
        answer = Answer(by=by, announced_at=announced_at, plan=PLAN, failure=None)
        exchange.answer_path.write_text(to_json(answer))


def wait(exchange: PlanExchange, *, wait_s: float = 0.3) -> Plan:
    return wait_for(exchange, launch(1), ignore, wait_s=wait_s)


def answer_of_rank_0(exchange: PlanExchange, make: Callable[[], Plan]) -> MemplanError | Plan:
    """What a waiting rank gets while this process is rank 0."""
    got: list[MemplanError | Plan] = []

    def ask() -> None:
        try:
            got.append(wait(exchange, wait_s=30))
        except MemplanError as error:
            got.append(error)

    waiting = threading.Thread(target=ask)
    waiting.start()
    with contextlib.suppress(MemplanError, KeyboardInterrupt):
        make_for_all(make, exchange)
    waiting.join(timeout=30)
    return got[0]


def test_the_others_get_the_plan_that_rank_0_makes(exchange: PlanExchange) -> None:
    def make() -> Plan:
        time.sleep(0.3)
        return PLAN

    assert answer_of_rank_0(exchange, make) == PLAN


def test_a_plan_that_fails_fails_everywhere_with_the_same_words(exchange: PlanExchange) -> None:
    failure = NothingFitsError("nothing fits 1 GiB", where="cpu", hint="take more", detail="a trace")

    def make() -> Plan:
        raise failure

    got = answer_of_rank_0(exchange, make)
    assert type(got) is NothingFitsError
    assert (str(got), got.detail) == (str(failure), failure.detail)


def test_a_rank_0_that_fails_waits_until_the_others_know_why(exchange: PlanExchange) -> None:
    def make() -> Plan:
        raise NothingFitsError("nothing fits")

    answer_of_rank_0(exchange, make)
    assert exchange.is_acknowledged_by_all
    exchange.announce(this_process())
    assert not exchange.is_acknowledged_by_all


def test_an_interrupted_rank_0_is_told_to_the_others(exchange: PlanExchange) -> None:
    def make() -> Plan:
        raise KeyboardInterrupt

    got = answer_of_rank_0(exchange, make)
    assert isinstance(got, LaunchError)
    assert "KeyboardInterrupt" in str(got)


def test_a_rank_0_that_dies_before_its_answer_is_noticed(exchange: PlanExchange, ended: ProcessIdentity) -> None:
    leave(exchange, ended, time.time(), answered=False)
    with pytest.raises(LaunchError, match="rank 0 ended while it was making the plan"):
        wait(exchange, wait_s=30)


def test_an_answer_of_a_rank_0_that_has_ended_since_counts_if_it_is_of_this_run(
    exchange: PlanExchange, ended: ProcessIdentity
) -> None:
    leave(exchange, ended, time.time(), answered=True)
    assert wait(exchange) == PLAN


def test_what_an_earlier_run_of_the_same_name_left_is_not_taken(exchange: PlanExchange, ended: ProcessIdentity) -> None:
    leave(exchange, ended, psutil.Process().create_time() - 1, answered=True)
    with pytest.raises(LaunchError, match=r"rank 0 did not ask for a plan within 0 s.*every rank must call"):
        wait(exchange)


def test_a_rank_that_starts_late_takes_the_answer_of_a_rank_0_that_still_runs(exchange: PlanExchange) -> None:
    me = this_process()
    leave(exchange, me, psutil.Process().create_time() - 1, answered=True)
    assert wait(exchange) == PLAN


def test_a_rank_0_elsewhere_is_seen_by_the_sign_that_it_renews(exchange: PlanExchange) -> None:
    elsewhere = ProcessIdentity(host="node7", pid=1, started="never")
    leave(exchange, elsewhere, psutil.Process().create_time() - 1, answered=True)
    with pytest.raises(LaunchError, match="did not ask"):
        wait(exchange)
    renewing = threading.Timer(0.3, lambda: os.utime(exchange.announcement_path))
    renewing.start()
    assert wait(exchange, wait_s=30) == PLAN


def test_a_new_rank_0_takes_away_what_an_earlier_run_left(exchange: PlanExchange, ended: ProcessIdentity) -> None:
    leave(exchange, ended, 0.0, answered=True)
    old = exchange.announcement_path.with_name("other.announcement.json")
    old.touch()
    os.utime(old, (0, 0))
    exchange.announce(this_process())
    assert exchange.answer() is None
    assert not old.exists()


def test_another_run_and_another_question_meet_elsewhere(tmp_path: Path) -> None:
    points = [
        PlanExchange(tmp_path, launch(0), 1),
        PlanExchange(tmp_path, launch(0), 2),
        PlanExchange(tmp_path, launch(0, "run 2"), 1),
    ]
    assert len({each.answer_path for each in points}) == 3
    assert PlanExchange(tmp_path, launch(1), 1).answer_path == points[0].answer_path


def test_a_file_that_another_run_takes_away_meanwhile_is_no_trouble(exchange: PlanExchange) -> None:
    exchange.announcement_path.parent.mkdir(parents=True)
    (exchange.announcement_path.parent / "gone.announcement.json").symlink_to("nowhere")
    exchange.announce(this_process())
    assert exchange.announcement() is not None
