"""Tables of live trials for the terminal: what was run, estimated and measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from memplan.recommend.speeds import apart_from_rate, fastest_run
from memplan.report.layout import BAD, GOOD, QUIET, plain_table
from memplan.report.wording import (
    bytes_text,
    component_text,
    deviation_text,
    error_text,
    outcome_text,
    rate_text,
    share_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from memplan.report.facts import Comparison, RunReport, TrialRow
    from memplan.results import LoaderSpeed

EVIDENCE_INDENT = 6
_PLOT_COLUMNS = 40
_BAR = "█"


def trial_table(report: RunReport) -> Table:
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
    for trial in filter(has_range, trials):
        said = Text("inside", style=GOOD) if trial.process.is_in_range else Text("outside", style=BAD)
        edges = map(bytes_text, trial.process.estimated_range_bytes or ())
        table.add_row(str(trial.number), *edges, bytes_text(trial.process.measured_bytes), said)
    return table


def has_range(trial: TrialRow) -> bool:
    """Whether the estimate of a trial left a range to compare with."""
    return trial.process.is_in_range is not None


def trial_lines(trial: TrialRow, *, was_resumed: bool, command: str | None = None) -> list[Text]:
    """Say in one line how a trial ended; of one that failed also why, and which command runs it again."""
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


def failure_lines(trials: Sequence[TrialRow]) -> list[Text]:
    """Say of each trial that failed how it ended and what was seen."""
    return [Text(f"{each.number:>2}  {each.outcome}: {each.evidence}") for each in trials if not each.fits]


def precision_table(report: RunReport) -> Table:
    """Compare precisions, each at its own best micro-batch."""
    table = plain_table("Precisions", "precision", "micro-batch", "util", "per s", "loss vs fp32", "remark")
    table.columns[-1].justify = "left"
    left_out = {each.remark for each in report.precisions if each.micro_batch_size is None}
    alike = {remark: [each for each in report.precisions if each.remark == remark] for remark in left_out}
    for row in report.precisions:
        same = alike.get(row.remark, [row])
        if row is not same[0]:
            continue  # it stands in the row of the first
        table.add_row(
            ", ".join(str(each.precision) for each in same),
            "-" if row.micro_batch_size is None else str(row.micro_batch_size),
            share_text(row.utilisation),
            rate_text(row.samples_per_s),
            deviation_text(row.loss_deviation, row.compared_steps),
            Text(row.remark),
        )
    return table


def accumulation_table(report: RunReport) -> Table:
    """Compare runs with accumulation to those of the same precision and micro-batch, and with what is recommended."""
    table = plain_table("Accumulation", "recipe", "global batch", "allocated", "process", "util", "per s")
    settings = {(t.recipe.precision, t.recipe.micro_batch_size) for t in report.trials if accumulates(t)}
    shown: set[str] = set()
    for trial in report.trials:
        is_recommended = report.plan is not None and settings and trial.recipe == report.plan.recipe
        is_wanted = is_recommended or (trial.recipe.precision, trial.recipe.micro_batch_size) in settings
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


def throughput_plot(report: RunReport) -> Text:
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


def typical_line(subject: TrialRow) -> Text:
    """Compare a step on a typical batch with the worst one that everything else is about."""
    peak, speed = bytes_text(subject.typical_allocated_bytes), rate_text(subject.typical_samples_per_s)
    return Text(
        f"These are figures of the worst batch. A typical one peaks at {peak} of tensors and runs {speed} samples/s.",
        style=QUIET,
    )


def loader_line(loader: LoaderSpeed) -> Text:
    """Say how fast the data loader is, with which steps are worth comparing."""
    speed = rate_text(loader.samples_per_s)
    return Text(f"The data loader by itself makes {speed} samples/s {loader.workers_text}.", style=QUIET)


def accumulates(trial: TrialRow) -> bool:
    """Whether a trial took several micro-steps for each optimizer step."""
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
