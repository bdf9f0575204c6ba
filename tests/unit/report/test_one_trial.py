"""What `memplan trial` shows of a stored trial, alone and beside its second run."""

from __future__ import annotations

from memplan.report.one_trial import one_trial_view
from tests.making import rendered, trial

STORED = trial(4, 300, number=1, purpose="current recipe", estimated_mib=280)
AGAIN = trial(4, 310, number=1, purpose="again", estimated_mib=280)


def test_a_trial_that_was_run_again_stands_below_the_stored_one_with_its_memory_and_no_blanks_at_line_ends() -> None:
    lines = rendered(one_trial_view(STORED, AGAIN)).splitlines()
    assert lines == [line.rstrip() for line in lines]
    assert "300.0 MiB" in lines[0]
    assert "310.0 MiB" in lines[1]
    assert lines[2:4] == ["", "Memory of trial 1 (fp32, 4 x 1) on cpu"]
    assert lines[-1].split() == ["peak", "process", "280.0", "MiB", "310.0", "MiB", "-9.7%"]
