"""Reports for programs: one JSON document, or one CSV row for each compared quantity."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from memplan.json_documents import json_document, json_ready

if TYPE_CHECKING:
    from memplan.report.facts import Comparison, RunReport


def run_to_json(report: RunReport) -> str:
    """Write a run's facts as JSON; errors are relative, (estimated - measured) / measured."""
    document = json_ready(report)
    document["components"] = [_with_error(row) for row in report.components]
    for row, trial in zip(document["trials"], report.trials, strict=True):
        row["process"] = _with_error(trial.process)
    return json_document(document)


def run_to_csv(report: RunReport) -> str:
    """Write the process peak of every trial and the components of the compared one, in bytes, one row each."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([
        "run", "trial", "purpose", "precision", "micro_batch_size", "accumulation_steps", "outcome", "samples_per_s",
        "quantity", "estimated_bytes", "measured_bytes", "relative_error",
    ])  # fmt: skip
    for trial in report.trials:
        rows = report.components if trial == report.subject else (trial.process,)
        for row in rows:
            error = row.relative_error
            writer.writerow([
                report.run_id, trial.number, trial.purpose, trial.recipe.precision, trial.recipe.micro_batch_size,
                trial.recipe.accumulation_steps, trial.outcome,
                "" if trial.samples_per_s is None else f"{trial.samples_per_s:.3f}", row.name,
                _cell(row.estimated_bytes), _cell(row.measured_bytes), "" if error is None else f"{error:.4f}",
            ])  # fmt: skip
    return text.getvalue()


def _with_error(row: Comparison) -> dict[str, Any]:
    error = row.relative_error
    judged = {"relative_error": None if error is None else round(error, 4), "is_in_range": row.is_in_range}
    return {**json_ready(row), **judged}


def _cell(count_bytes: int | None) -> str:
    return "" if count_bytes is None else str(count_bytes)
