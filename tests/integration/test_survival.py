"""Trials and journal when something is killed at any moment: no trial is lost, no process is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from memplan.probe.journal import Journal

ROOT = Path(__file__).parents[2]
MARK = "MEMPLAN_TEST_SURVIVAL"
# Runs trials of one workload for ever, says every phase it hears of, and journals each trial.
RUNNER = """
import os, sys, itertools
from memplan.devices.cards import DeviceKind, DeviceSpec
from memplan.probe.journal import Journal
from memplan.probe.launcher import run_trial, trial_template
from memplan.probe.trials import TrialRequest
from memplan.recipe import Recipe
from memplan.results import Trial
from memplan.units import GIB
from memplan.workload import WorkloadReference

def say(text):
    os.write(1, f"{text}\\n".encode())

target = f"trial_workloads:{sys.argv[3]}"
source = WorkloadReference(target=target, config={}, config_path=None, search_path=(sys.argv[2],))
device = DeviceSpec(name="cpu", kind=DeviceKind.CPU, total_bytes=2 * GIB)
with Journal(sys.argv[1]).open_run("f", {}) as run, trial_template() as template:
    for number in itertools.count(len(run.trials()) + 1):
        recipe = Recipe(micro_batch_size=number)
        request = TrialRequest(source=source, recipe=recipe, device=device, budget_bytes=2 * GIB)
        outcome = run_trial(request, on_progress=lambda progress: say(progress.phase), template=template)
        say("ended")
        run.record(Trial(number=number, purpose="x", recipe=recipe, device_name="cpu", budget_bytes=2 * GIB,
                         outcome=outcome), request)
        say("recorded")
"""


def runner(store: Path, function: str = "fits") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RUNNER, store, ROOT / "tests" / "contract", function],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, MARK: str(store), "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
    )


def left_of(store: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(store) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_until_gone(store: Path) -> None:
    deadline = time.monotonic() + 20
    while left := left_of(store):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


@pytest.mark.slow
def test_a_runner_killed_at_any_moment_loses_no_trial_and_leaves_no_process(tmp_path: Path) -> None:
    recorded = 0
    for moment in ("starting", "timing", "attributing", "ended", "recorded"):
        process = runner(tmp_path)
        assert process.stdout is not None
        said = ""
        while said != moment or recorded == 0:
            said = process.stdout.readline().strip()
            assert said, "the runner ended by itself"
            recorded += said == "recorded"
        process.kill()
        late, _ = process.communicate()  # it may have gone on before it was killed
        recorded += late.split().count("recorded")
        wait_until_gone(tmp_path)
        stored = Journal(tmp_path).runs()
        assert len(stored) == 1, "the same run is resumed"
        numbers = [trial.number for trial in stored[0].trials]
        assert numbers == list(range(1, len(numbers) + 1)), moment
        assert len(numbers) - recorded in {0, 1}, moment  # the last may be stored and not yet told of
        recorded = len(numbers)


@pytest.mark.slow
def test_loader_workers_go_with_a_runner_that_is_killed(tmp_path: Path) -> None:
    process = runner(tmp_path, "reads_with_forked_loaders")
    assert process.stdout is not None
    while process.stdout.readline().strip() != "timing":
        pass
    process.kill()  # two steps have left two loaders with two workers each
    process.communicate()
    wait_until_gone(tmp_path)


@pytest.mark.slow
def test_an_interrupt_in_the_middle_of_a_trial_leaves_no_process_and_what_was_recorded(tmp_path: Path) -> None:
    process = runner(tmp_path)
    assert process.stdout is not None
    while process.stdout.readline().strip() != "timing":
        pass
    for _ in range(5):
        process.send_signal(2)
        time.sleep(0.01)
    process.communicate()
    assert process.returncode not in (0, None)
    wait_until_gone(tmp_path)
    assert Journal(tmp_path).runs()[0].trials == ()
