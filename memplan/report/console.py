"""Reports for the terminal, as rich renderables made from facts."""

from __future__ import annotations

import textwrap
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group
from rich.syntax import Syntax
from rich.text import Text

from memplan.report.layout import BAD, GOOD, QUIET, hanging, plain_table, spaced
from memplan.report.trial_tables import (
    EVIDENCE_INDENT,
    accumulates,
    accumulation_table,
    component_table,
    failure_lines,
    has_range,
    loader_line,
    precision_table,
    range_table,
    throughput_plot,
    trial_table,
    typical_line,
)
from memplan.report.wording import bytes_text, cached_text, share_text
from memplan.results import RunStatus
from memplan.training_checks import CheckVerdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType
    from rich.table import Table

    from memplan.patches import ConfigPatch
    from memplan.plans import Plan
    from memplan.report.facts import RunReport

_COMMAND_COLUMNS = 76
_WITHOUT_PLAN = {
    RunStatus.FINISHED: "a probe, which makes no plan",
    RunStatus.FAILED: "came to no plan",
    RunStatus.RUNNING: "still running",
    RunStatus.INTERRUPTED: "interrupted; the same probe command resumes it",
}
_PROSE_INDENT = 4


def run_view(report: RunReport) -> RenderableType:
    """Show a stored run: what was planned for, its trials, then everything that :func:`plan_view` shows."""
    again = Text(f"one of them again, with its output:  memplan trial {report.run_id} NUMBER", style=QUIET)
    parts = [spaced(again)] if report.trials else []
    trained = [spaced(_check_table(report))] if report.checks else []
    ranged = [spaced(range_table(report.trials))] if any(map(has_range, report.trials)) else []
    trials: list[RenderableType] = ["", trial_table(report)] if report.trials else []
    return Group(*_heading(report), *trials, *_failures(report), *ranged, *parts, plan_view(report), *trained)


def _heading(report: RunReport) -> Iterator[RenderableType]:
    """Say what the run was for, or why there is no plan."""
    plan = report.plan
    if plan is None:
        said = _WITHOUT_PLAN[report.status]
    else:
        what = Path(plan.config_path).name if plan.config_path else plan.workload_name
        band = f"{plan.min_utilisation:.0%} to {plan.max_utilisation:.0%}"
        said = f"{what} on {plan.device_name}, {bytes_text(plan.device_total_bytes)}, band {band}"
    yield Text.assemble((f"Run {report.run_id}", "bold"), f": {said}")
    if report.failure is not None:
        yield hanging([Text(f"  {report.failure}", style=BAD)], indent=_PROSE_INDENT)


def _failures(report: RunReport) -> Iterator[RenderableType]:
    """Say how the trials ended that failed, if any."""
    if found := failure_lines(report.trials):
        yield spaced(hanging([Text("Trials that failed", style="bold"), *found], indent=EVIDENCE_INDENT))


def _check_table(report: RunReport) -> Table:
    """Show what trainings with the plan really took next to what was planned."""
    table = plain_table("Trainings with this plan, device peaks", "checked", "rank", "planned", "measured", "util", "")
    for check in report.checks:
        is_good = check.verdict in (CheckVerdict.INSIDE, CheckVerdict.AS_PLANNED)
        said = check.remark if check.verdict is CheckVerdict.NOT_COMPARED else str(check.verdict)
        table.add_row(
            f"{datetime.fromisoformat(check.made_at):%Y-%m-%d %H:%M}",
            str(check.rank),
            bytes_text(check.planned_device_bytes),
            bytes_text(check.peaks.device_bytes if check.peaks else None),
            share_text(check.utilisation),
            Text(said, style=GOOD if is_good else BAD),
        )
    return table


def plan_view(report: RunReport) -> RenderableType:
    """Show the result of the trials: precisions, accumulation, components, the recommendation and the patch."""
    parts: list[RenderableType] = []
    if report.precisions:
        parts.append(precision_table(report))
    if report.throughput:
        parts.append(throughput_plot(report))
    accumulation = accumulation_table(report)
    if accumulation.row_count > 1 and any(trial.fits and accumulates(trial) for trial in report.trials):
        parts.append(accumulation)
    if report.subject is not None:
        parts.append(component_table(report.subject, report.components))
        if report.subject.typical_samples_per_s is not None:
            parts.append(typical_line(report.subject))
        if report.loader is not None:
            parts.append(loader_line(report.loader))
    if report.plan is not None:
        parts.append(_recommendation(report.plan))
        if report.plan.config_patch is not None:
            parts.append(_patch_view(report.plan.config_patch))
    return Group(*(spaced(part) for part in parts))


def _recommendation(plan: Plan) -> RenderableType:
    """Say what is recommended and why, or that nothing needs to change."""
    is_start_memplans = plan.command is not None and plan.config_path is None
    if plan.changes_anything or is_start_memplans:
        head = Text("Recommended: ", style="bold").append(str(plan.recipe), style=GOOD)
        if plan.recipe.learning_rate is not None:
            head.append(f", learning rate {plan.recipe.learning_rate:g}", style=GOOD)
        before = "now" if plan.command is None else "started from"
        head.append(f"  ({before} {plan.current})", style=f"not bold {QUIET}")
    else:
        said = "Nothing to change: " if plan.config_patch is None else "The recipe stays: "
        head = Text(said, style="bold").append(str(plan.current), style=GOOD)
    cached = [] if plan.cached_from is None else [Text(cached_text(plan.cached_from), style="yellow")]
    reasons = [Text(f"  {reason}") for reason in plan.reasons]
    notes = [Text(f"  note: {note}", style="yellow") for note in plan.notes]
    return hanging([*cached, head, *reasons, *notes], indent=_PROSE_INDENT)


def _patch_view(patch: ConfigPatch) -> RenderableType:
    """Show the patch as a coloured diff with the loader that verified it, and what says the same without it."""
    checked = Text(f"read back with {patch.verified_by}: exactly these values change", style=QUIET)
    notes = hanging((Text(f"note: {note}", style="yellow") for note in patch.notes), indent=_PROSE_INDENT)
    if not patch.files:
        return Group(Text("Change", style="bold"), notes, *_override_lines(patch))
    diff = Syntax(patch.diff.rstrip("\n"), "diff", theme="ansi_light", background_color="default", word_wrap=True)
    return Group(Text("Patch", style="bold"), diff, checked, notes, *_override_lines(patch))


def _override_lines(patch: ConfigPatch) -> list[RenderableType]:
    """Return the change as words of the command, continued over lines as a shell reads them."""
    if patch.override_line is None:
        return []
    words = textwrap.wrap(patch.override_line, _COMMAND_COLUMNS, break_long_words=False, break_on_hyphens=False)
    lead = "or, without changing a file, add" if patch.files else "add"
    return [Text(f"{lead} to the training command:", style=QUIET), Text(" \\\n".join(words))]
