"""What a plan in the making writes where nobody can see a progress bar, such as a log file."""

from __future__ import annotations

import io
import logging
import time
from dataclasses import replace

import pytest
from rich.console import Console

from memplan.errors import UsageError
from memplan.progress import Event, Notice, PlanEnded, PlanStarted, Stage, TrialAdvanced, TrialEnded, TrialStarted
from memplan.recipe import Recipe
from memplan.report.live import LiveView
from memplan.report.log import log
from memplan.results import OutcomeKind
from memplan.units import GIB
from tests.making import BAND, CPU, plan, trial


def written(*events: Event) -> list[str]:
    console = Console(file=io.StringIO(), width=100)
    with LiveView(console) as view:
        for event in events:
            view(event)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


EVENTS = (
    Stage(text="estimating fp32, 4 x 1"),
    Notice(text="the CPU has no TF32 units"),
    TrialStarted(number=1, purpose="confirm", recipe=Recipe(micro_batch_size=4)),
    TrialAdvanced(doing="timing", done_steps=2, total_steps=6),
    TrialEnded(trial=trial(4, 700), was_resumed=False, command="memplan trial r 1"),
    PlanEnded(plan=plan(Recipe(4), Recipe(8), notes=("check the learning rate",))),
)


def test_only_notices_and_trials_that_ended_leave_a_line() -> None:
    assert written(*EVENTS) == [
        "the CPU has no TF32 units",
        " 1  confirm             fp32, 4 x 1    ✓  700.0 MiB  70%  10.0/s   4 s",
    ]


def test_in_a_log_work_that_takes_long_says_so_at_growing_intervals_until_it_ends() -> None:
    file, first_s = io.StringIO(), 0.2
    with LiveView(Console(file=file, width=100), first_after_s=first_s) as view:
        begun = time.monotonic()
        view(TrialStarted(number=1, purpose="current", recipe=Recipe(micro_batch_size=4)))
        view(TrialAdvanced(doing="warming up", done_steps=1, total_steps=5))
        while file.getvalue().count("so far") < 3:
            assert time.monotonic() - begun < 30
            time.sleep(0.01)
        assert time.monotonic() - begun > 4 * first_s  # they are due after once, twice and four times as long
        view(TrialEnded(trial=trial(4, 700), was_resumed=False, command="memplan trial r 1"))
        lines = [line.rstrip() for line in file.getvalue().splitlines()]
        time.sleep(8 * first_s)
    said = "trial 1  current  fp32, 4 x 1: warming up, 1 of 5 steps, {} s so far"
    assert lines[:3] == [said.format(each) for each in ("0", "0", "1")]
    assert lines[-1].startswith(" 1  ")
    assert [line.rstrip() for line in file.getvalue().splitlines()] == lines


def test_work_that_ends_soon_is_not_announced_in_a_log() -> None:
    console = Console(file=io.StringIO(), width=100)
    with LiveView(console, first_after_s=0.2) as view:
        view(Stage(text="estimating fp32, 4 x 1"))
        view(Stage(text="estimating bf16, 4 x 1"))
    time.sleep(0.4)
    assert not console.file.getvalue()


def test_a_plan_begins_with_what_is_run_where_and_what_was_remarked() -> None:
    started = PlanStarted(
        command="python train.py",
        config=None,
        current=Recipe(micro_batch_size=4),
        device=replace(CPU, total_bytes=10 * GIB),
        band=replace(BAND, total_bytes=10 * GIB),
        notes=("no patch: train.cfg is of no known ecosystem",),
    )
    assert written(started) == [
        "command  python train.py",
        "device   cpu, 10.00 GiB; band 60% to 80%, 6.00 GiB to 8.00 GiB",
        "first    fp32, 4 x 1 (micro-batch x accumulation)",
        "note     no patch: train.cfg is of no known ecosystem",
        "",
    ]


def test_from_python_events_are_logged_and_what_to_know_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="memplan")
    for event in EVENTS:
        log(event)
    assert [(level, text) for _, level, text in caplog.record_tuples] == [
        (logging.INFO, "estimating fp32, 4 x 1"),
        (logging.WARNING, "the CPU has no TF32 units"),
        (logging.INFO, "trial 1  confirm  fp32, 4 x 1"),
        (logging.INFO, " 1  confirm             fp32, 4 x 1    ✓  700.0 MiB  70%  10.0/s   4 s"),
        (logging.WARNING, "check the learning rate"),
    ]


def test_a_trial_that_failed_leaves_its_evidence_and_the_line_that_runs_it_again() -> None:
    failed = trial(4, None, kind=OutcomeKind.USER_ERROR, evidence="KeyError: 'lr'")
    lines = written(TrialEnded(trial=failed, was_resumed=False, command="memplan trial r 1"))
    assert [line.strip() for line in lines[1:]] == ["KeyError: 'lr'", "again, with its output: memplan trial r 1"]


def test_a_plan_that_is_refused_at_once_leaves_no_line() -> None:
    console = Console(file=io.StringIO(), width=100)
    with pytest.raises(UsageError), LiveView(console):
        raise UsageError("there is nothing to probe")
    assert not console.file.getvalue()


def test_progress_of_a_trial_that_was_not_announced_is_no_trouble() -> None:
    assert written(TrialAdvanced(doing="timing", done_steps=1, total_steps=6)) == []
