"""One trial in the terminal: how it ended when it was stored and when it was run again, its memory, its output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group

from memplan.report.facts import compare, trial_row
from memplan.report.layout import hanging, spaced
from memplan.report.trial_tables import EVIDENCE_INDENT, component_table, trial_lines

if TYPE_CHECKING:
    from rich.console import RenderableType

    from memplan.results import Trial

_SHOWN_LINES = 60


def one_trial_view(stored: Trial, again: Trial | None) -> RenderableType:
    """Show a stored trial and, where there is one, the same trial run again; the memory is of the later one."""
    shown = again or stored
    ends = trial_lines(trial_row(stored), was_resumed=True)
    if again is not None:
        ends += trial_lines(trial_row(again), was_resumed=False)
    parts: list[RenderableType] = [hanging(ends, indent=EVIDENCE_INDENT)]
    measured = shown.outcome.measurement
    if measured is not None:
        parts.append(spaced(component_table(trial_row(shown), compare(shown.estimate, measured))))
    return Group(*parts)


def output_text(trial: Trial) -> str:
    """Return the end of what a trial printed, under a line that says how much of it that is."""
    lines = trial.outcome.log_tail.rstrip().splitlines()
    if not lines:
        return "it printed nothing"
    shown = lines[-_SHOWN_LINES:]
    count = f"last {len(shown)} of {len(lines)} lines kept" if len(lines) > len(shown) else "all that is kept"
    return "\n".join([f"what it printed ({count}):", *shown])
