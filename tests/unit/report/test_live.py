"""What a plan in the making writes where nobody can see a progress bar, such as a log file."""

from __future__ import annotations

import io

from rich.console import Console

from memplan.progress import Event, Notice, Stage, TrialAdvanced, TrialEnded, TrialStarted
from memplan.recipe import Recipe
from memplan.report.live import LiveView
from memplan.results import OutcomeKind
from tests.making import trial


def written(*events: Event) -> list[str]:
    console = Console(file=io.StringIO(), width=100)
    with LiveView(console) as view:
        for event in events:
            view(event)
    return [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]


def test_only_notices_and_trials_that_ended_leave_a_line() -> None:
    lines = written(
        Stage(text="estimating fp32, 4 x 1"),
        Notice(text="the CPU has no TF32 units"),
        TrialStarted(number=1, purpose="confirm", recipe=Recipe(micro_batch_size=4)),
        TrialAdvanced(doing="timing", done_steps=2, total_steps=6),
        TrialEnded(trial=trial(4, 700), was_resumed=False, command="memplan trial r 1"),
    )
    assert lines == [
        "the CPU has no TF32 units",
        " 1  confirm             fp32, 4 x 1   ✓  700.0 MiB  70%  10.0/s   4 s",
    ]


def test_a_trial_that_failed_leaves_its_evidence_and_the_line_that_runs_it_again() -> None:
    failed = trial(4, None, kind=OutcomeKind.USER_ERROR, evidence="KeyError: 'lr'")
    lines = written(TrialEnded(trial=failed, was_resumed=False, command="memplan trial r 1"))
    assert [line.strip() for line in lines[1:]] == ["KeyError: 'lr'", "again, with its output: memplan trial r 1"]


def test_progress_of_a_trial_that_was_not_announced_is_no_trouble() -> None:
    assert written(TrialAdvanced(doing="timing", done_steps=1, total_steps=6)) == []
