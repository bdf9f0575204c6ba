"""A run that is stopped at any moment resumes, and leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.cpu_budgets import cpu_budget
from tests.integration.conftest import MAPS, memplan

if TYPE_CHECKING:
    from pathlib import Path


def probe_words() -> tuple[str, ...]:
    asked = ("--device", "cpu", *cpu_budget(640).options, "--precision", "fp32", "--json")
    return ("probe", "config.yaml", "--workload", "net:make_workload", *MAPS, *asked)


def started(project: Path, *options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "memplan", *probe_words(), *options],
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def stored_trials(project: Path) -> int:
    path = project / ".memplan" / "journal.sqlite3"
    if not path.exists():
        return 0
    try:
        with sqlite3.connect(path) as connection:
            return int(connection.execute("SELECT count(*) FROM trials").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def wait_until(true: object, *, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.05)


def descendants_of(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


@pytest.mark.slow
def test_a_killed_run_resumes_without_repeating_its_finished_trials(project: Path) -> None:
    process = started(project)
    wait_until(lambda: stored_trials(project) >= 1)
    wait_until(lambda: descendants_of(process.pid))
    children = descendants_of(process.pid)
    process.kill()
    process.communicate()
    _gone, alive = psutil.wait_procs(children, timeout=10)
    assert not alive, "a child outlived its killed parent"
    done = stored_trials(project)

    resumed = memplan(*probe_words(), cwd=project)
    assert resumed.status == 0, resumed.err
    assert resumed.err.count("(journal)") == done, "every finished trial is taken from the journal"
    recipes = [json.dumps(trial["recipe"], sort_keys=True) for trial in resumed.document["trials"]]
    assert len(set(recipes)) == len(recipes) == stored_trials(project)


@pytest.mark.slow
@pytest.mark.parametrize("signals", [(signal.SIGINT,), (signal.SIGINT, signal.SIGINT), (signal.SIGTERM,)])
def test_an_interrupt_ends_with_status_130_and_leaves_no_child(project: Path, signals: tuple[int, ...]) -> None:
    process = started(project)
    wait_until(lambda: descendants_of(process.pid))
    children = descendants_of(process.pid)
    for number in signals:
        os.kill(process.pid, number)
        time.sleep(0.05)
    out, said = process.communicate(timeout=60)
    assert process.returncode == 130, said.decode()
    assert json.loads(out)["error"]["problem"] == "interrupted"
    assert said.decode().rstrip().splitlines()[-1].startswith("memplan: interrupted")
    assert not psutil.wait_procs(children, timeout=10)[1]


@pytest.mark.slow
def test_two_runs_at_once_on_one_store_both_finish(project: Path) -> None:
    first, second = (started(project, "--max-batch", "4") for _ in range(2))
    for process in (first, second):
        out, said = process.communicate(timeout=300)
        assert process.returncode == 0, said.decode()
        assert json.loads(out)["plan"] is not None
    with sqlite3.connect(project / ".memplan" / "journal.sqlite3") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("SELECT count(*) FROM runs WHERE plan IS NOT NULL").fetchone() == (2,)
