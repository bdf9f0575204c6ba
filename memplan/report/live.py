"""The live view of a plan: a progress bar for the running trial or lines in a log, and one for each that ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from memplan.progress import Notice, PlanStarted, Stage, TrialAdvanced, TrialEnded, TrialStarted
from memplan.report.facts import trial_row
from memplan.report.late_lines import LateLines
from memplan.report.layout import hanging
from memplan.report.plan_heading import NAME_COLUMNS, plan_heading
from memplan.report.trial_tables import EVIDENCE_INDENT, trial_lines

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console

    from memplan.progress import Event


class LiveView:
    """Follow the events of a plan: on a terminal by a progress bar, elsewhere by lines while it takes long.

    Args:
        console: where it is shown.
        first_after_s: how long work goes on elsewhere before a line says so, in seconds; None for the usual.
    """

    def __init__(self, console: Console, *, first_after_s: float | None = None) -> None:
        self._console = console
        self._late_lines = LateLines(self._say_late, first_after_s)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[doing]}", style="dim"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task: TaskID | None = None
        self._heading_notes: tuple[str, ...] = ()

    @property
    def heading_notes(self) -> tuple[str, ...]:
        """The notes that were shown at the head of the plan."""
        return self._heading_notes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._late_lines.end()
        if self._console.is_interactive:  # rich before 14.3 ends by an empty line what never began, too
            self._progress.stop()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        match event:
            case PlanStarted(notes=notes):
                self._end()
                self._heading_notes = notes
                self._console.print(hanging(plan_heading(event), indent=NAME_COLUMNS), "", sep="\n")
            case Stage(text=text):
                self._begin(text)
            case Notice(text=text):
                self._console.print(Text(text, style="yellow"))
            case TrialStarted(number=number, purpose=purpose, recipe=recipe):
                self._begin(f"trial {number}  {purpose}  {recipe}")
            case TrialAdvanced(doing=doing, done_steps=done, total_steps=total):
                self._late_lines.advance(f"{doing}, {done} of {total} steps" if total > 1 else doing)
                if self._task is not None:
                    self._progress.update(self._task, completed=done, total=total, doing=doing)
            case TrialEnded(trial=trial, was_resumed=was_resumed, command=command):
                self._end()
                lines = trial_lines(trial_row(trial), was_resumed=was_resumed, command=command)
                self._console.print(hanging(lines, indent=EVIDENCE_INDENT))

    def _begin(self, description: str) -> None:
        self._end()
        if self._console.is_interactive:
            self._progress.start()
        else:
            self._late_lines.begin(description)
        self._task = self._progress.add_task(description, total=None, doing="")

    def _say_late(self, line: str) -> None:
        self._console.print(Text(line, style="dim"))

    def _end(self) -> None:
        self._late_lines.end()
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None
