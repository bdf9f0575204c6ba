"""Reports for the terminal, as rich renderables made from facts."""

from __future__ import annotations

import textwrap
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group
from rich.syntax import Syntax
from rich.text import Text

from memplan.recommend.speeds import apart_from_rate, fastest_run
from memplan.report.hanging import hanging, spaced
from memplan.report.tables import BAD, GOOD, QUIET, plain_table
from memplan.report.wording import (
    RECIPE_SIZES,
    bytes_text,
    cached_text,
    component_text,
    deviation_text,
    error_text,
    outcome_text,
    rate_text,
    share_text,
)
from memplan.training_checks import CheckVerdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from memplan.configs import UserConfig
    from memplan.devices.cards import DeviceSpec
    from memplan.patches import ConfigPatch
    from memplan.plans import Plan
    from memplan.progress import PlanStarted
    from memplan.recipe import Recipe
    from memplan.recommend.band import Band
    from memplan.report.facts import Comparison, RunReport, TrialRow

NAME_COLUMNS = 9
EVIDENCE_INDENT = 6
_COMMAND_COLUMNS = 76
_PROSE_INDENT = 4
_PLOT_COLUMNS = 40
_BAR = "█"


def plan_heading(started: PlanStarted) -> list[Text]:
    """Show what is planned, for which device and band, and the notes on the config."""
    device = ("device", _device_text(started.device, started.band))
    if started.command is not None:
        first = ("first", f"{started.current} ({RECIPE_SIZES})")
        return _named_lines((("command", started.command), device, first), started.notes)
    named = () if started.config is None else (("config", _config_text(started.config)),)
    return _named_lines((*named, device, ("current", _current_text(started.current))), started.notes)


def _config_text(config: UserConfig) -> str:
    return f"{' + '.join(config.file_names)} ({config.format_name})"


def _current_text(current: Recipe) -> str:
    rate = "" if current.learning_rate is None else f", learning rate {current.learning_rate:g}"
    batch = f", global batch {current.global_batch_size}" if current.world_size > 1 else ""
    return f"{current} ({RECIPE_SIZES}){batch}{rate}"


def _device_text(device: DeviceSpec, band: Band) -> str:
    edges = f"{share_text(band.min_utilisation)} to {share_text(band.max_utilisation)}"
    sizes = f"{bytes_text(band.lower_bytes)} to {bytes_text(band.upper_bytes)}"
    return f"{device.name}, {bytes_text(band.total_bytes)}; band {edges}, {sizes}"


def _named_lines(lines: Sequence[tuple[str, str]], notes: Sequence[str]) -> list[Text]:
    named = [Text.assemble((f"{name:<{NAME_COLUMNS}}", "bold"), value) for name, value in lines]
    return [*named, *(Text(f"{'note':<{NAME_COLUMNS}}{note}", style="yellow") for note in notes)]


def run_view(report: RunReport) -> RenderableType:
    """Show a stored run: what was planned for, its trials, then everything that :func:`plan_view` shows."""
    again = Text(f"one of them again, with its output:  memplan trial {report.run_id} NUMBER", style=QUIET)
    parts = [spaced(again)] if report.trials else []
    trained = [spaced(_check_table(report))] if report.checks else []
    ranged = [spaced(range_table(report.trials))] if any(map(_has_range, report.trials)) else []
    return Group(_heading(report), "", _trial_table(report), *ranged, *parts, plan_view(report), *trained)


def _heading(report: RunReport) -> Text:
    plan = report.plan
    if plan is None:
        said = "ended before there was a plan"
    else:
        what = Path(plan.config_path).name if plan.config_path else plan.workload_name
        band = f"{plan.min_utilisation:.0%} to {plan.max_utilisation:.0%}"
        said = f"{what} on {plan.device_name}, {bytes_text(plan.device_total_bytes)}, band {band}"
    return Text.assemble((f"Run {report.run_id}", "bold"), f": {said}")


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
        parts.append(_precision_table(report))
    if report.throughput:
        parts.append(_throughput_plot(report))
    if any(trial.fits and _accumulates(trial) for trial in report.trials):
        parts.append(_accumulation_table(report))
    if report.subject is not None:
        parts.append(component_table(report.subject, report.components))
        if report.subject.typical_samples_per_s is not None:
            parts.append(_typical_line(report.subject))
    if report.plan is not None:
        parts.append(_recommendation(report.plan))
        if report.plan.config_patch is not None:
            parts.append(_patch_view(report.plan.config_patch))
    return Group(*(spaced(part) for part in parts))


def _trial_table(report: RunReport) -> Table:
    """Show every live run with its process peak, estimated and measured."""
    table = plain_table(
        "Live trials, process peaks", "purpose", "recipe", "outcome", "estimated", "measured", "util", "per s"
    )
    for trial in report.trials:
        table.add_row(
            f"{trial.number} {trial.purpose}",
            str(trial.recipe),
            Text(outcome_text(trial.outcome), style=GOOD if trial.fits else BAD),
            bytes_text(trial.process.estimated_bytes),
            bytes_text(trial.process.measured_bytes),
            share_text(trial.utilisation),
            rate_text(trial.samples_per_s),
        )
    return table


def range_table(trials: Sequence[TrialRow]) -> Table:
    """Compare what trials took with the estimated range, where the context or the samples left one open."""
    table = plain_table("Process peaks beside their estimated range", "trial", "at least", "at most", "measured", "")
    for trial in filter(_has_range, trials):
        said = Text("inside", style=GOOD) if trial.process.is_in_range else Text("outside", style=BAD)
        edges = map(bytes_text, trial.process.estimated_range_bytes or ())
        table.add_row(str(trial.number), *edges, bytes_text(trial.process.measured_bytes), said)
    return table


def _has_range(trial: TrialRow) -> bool:
    return trial.process.is_in_range is not None


def trial_lines(trial: TrialRow, *, was_resumed: bool, command: str | None = None) -> list[Text]:
    """Say in one line how a trial ended; of one that did not fit also why, and which command runs it again."""
    line = Text()
    line.append(f"{trial.number:>2}  {trial.purpose:<18}  {trial.recipe!s:<14} ")
    if trial.fits:
        line.append("✓ ", style=GOOD)
        line.append(f"{bytes_text(trial.peak_device_bytes):>10} {share_text(trial.utilisation):>4} ")
        line.append(f"{rate_text(trial.samples_per_s):>5}/s ")
    else:
        line.append("✗ ", style=BAD)
        line.append(f"{trial.outcome} ", style=BAD)
    line.append("(journal)" if was_resumed else f"{trial.duration_s:>3.0f} s", style=QUIET)
    if trial.fits:
        return [line]
    again = () if command is None else (f"again, with its output: {command}",)
    return [line, *(Text(f"{'':<{EVIDENCE_INDENT}}{each}", style=QUIET) for each in (trial.evidence, *again))]


def _precision_table(report: RunReport) -> Table:
    """Compare precisions, each at its own best micro-batch."""
    table = plain_table("Precisions", "precision", "micro-batch", "util", "per s", "loss vs fp32", "remark")
    table.columns[-1].justify = "left"
    for row in report.precisions:
        table.add_row(
            str(row.precision),
            "-" if row.micro_batch_size is None else str(row.micro_batch_size),
            share_text(row.utilisation),
            rate_text(row.samples_per_s),
            deviation_text(row.loss_deviation, row.compared_steps),
            Text(row.remark),
        )
    return table


def _accumulation_table(report: RunReport) -> Table:
    """Compare runs with accumulation to the runs of the same precision and micro-batch without."""
    table = plain_table("Accumulation", "recipe", "global batch", "allocated", "process", "util", "per s")
    settings = {(t.recipe.precision, t.recipe.micro_batch_size) for t in report.trials if _accumulates(t)}
    shown: set[str] = set()
    for trial in report.trials:
        is_wanted = (trial.recipe.precision, trial.recipe.micro_batch_size) in settings
        if trial.fits and is_wanted and str(trial.recipe) not in shown:
            shown.add(str(trial.recipe))
            table.add_row(
                str(trial.recipe),
                str(trial.recipe.global_batch_size),
                bytes_text(trial.peak_allocated_bytes),
                bytes_text(trial.process.measured_bytes),
                share_text(trial.utilisation),
                rate_text(fastest_run(trial.recipe, report.trials)),
            )
    return table


def _throughput_plot(report: RunReport) -> Text:
    """Draw samples per second over the micro-batch: where the bars stop growing, more memory buys no more speed."""
    chosen = None if report.subject is None else apart_from_rate(report.subject.recipe)
    fastest = max(trial.samples_per_s or 0 for trial in report.throughput)
    plot = Text("Throughput by micro-batch", style="bold")
    for trial in report.throughput:
        is_chosen = apart_from_rate(trial.recipe) == chosen
        share = (trial.samples_per_s or 0) / fastest
        bar = _BAR * max(round(_PLOT_COLUMNS * share), 1)
        plot.append(f"\n{trial.recipe.micro_batch_size:>6}  ", style="not bold")
        plot.append(f"{bar:<{_PLOT_COLUMNS}}", style=f"not bold {GOOD if is_chosen else QUIET}")
        figures = f"  {rate_text(trial.samples_per_s)} per s, {share_text(trial.utilisation)}"
        plot.append(figures, style="bold" if is_chosen else "not bold")
    return plot


def _typical_line(subject: TrialRow) -> Text:
    """Compare a step on a typical batch with the worst one that everything else is about."""
    peak, speed = bytes_text(subject.typical_allocated_bytes), rate_text(subject.typical_samples_per_s)
    return Text(
        f"These are figures of the worst batch. A typical one peaks at {peak} of tensors and runs {speed} samples/s.",
        style=QUIET,
    )


def _accumulates(trial: TrialRow) -> bool:
    return trial.recipe.accumulation_steps > 1


def component_table(subject: TrialRow, components: Sequence[Comparison]) -> Table:
    """Show a trial's estimated and measured components side by side; only the measured ones if no others exist."""
    title = f"Memory of trial {subject.number} ({subject.recipe}) on {subject.device_name}"
    has_estimate = any(row.estimated_bytes is not None for row in components)
    table = plain_table(title, "component", *(("estimated", "measured", "error") if has_estimate else ("measured",)))
    for index, row in enumerate(components):
        if row.name.startswith("peak") and not components[index - 1].name.startswith("peak"):
            table.add_section()
        cells = _comparison_cells(row, subject.device_name)
        table.add_row(*(cells if has_estimate else (cells[0], cells[2])))
    return table


def _comparison_cells(row: Comparison, device_name: str) -> tuple[str, str, str, str]:
    return (
        component_text(row.name, device_name),
        bytes_text(row.estimated_bytes),
        bytes_text(row.measured_bytes),
        row.no_error_because or error_text(row.relative_error),
    )


def _recommendation(plan: Plan) -> RenderableType:
    """Say what is recommended and why, or that nothing needs to change."""
    if plan.changes_anything:
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
