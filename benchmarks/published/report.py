"""Predicted rows as lines, scores and a table."""

from __future__ import annotations

import statistics
from itertools import groupby
from typing import TYPE_CHECKING, Any

from published.rows import Peak, Row
from published.scores import (
    Verdict,
    cap_verdict,
    median_error,
    percentile_error,
    relative_errors,
    share_below,
)

from memplan.devices.cards import find_card
from memplan.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    Predicted = tuple[Row, dict[str, Any]]

UNSAFE_BELOW = -0.03
# What the xMem study added to its own tools' figures: memory of the context, measured on the card (RTX 3060 and 4060).
STUDY_CONTEXT_MIB = 117


def peak_mib(row: Row, record: dict[str, Any], *, context_mib: float | None = None) -> float | None:
    """Return the predicted figure of the kind that was measured; None where the estimate failed."""
    found = record.get(str(row.recipe.micro_batch_size))
    if found is None:
        return None
    if row.peak is Peak.ALLOCATED:
        return found["allocated_mib"]
    if row.peak is Peak.RESERVED:
        return found["reserved_mib"]
    return found["reserved_mib"] + (found["context_mib"] if context_mib is None else context_mib)


def measured_mib(row: Row) -> float | None:
    """Return the measured peak without what the measurement holds beside it."""
    return None if row.measured_mib is None else row.measured_mib - row.beyond_peak_mib


def row_line(row: Row, record: dict[str, Any]) -> str:
    """Say in one line what was measured and what is predicted."""
    head = f"{row.family:16s} {row.model[:46]:46s} {row.device:10s} b {row.recipe.micro_batch_size:4d}  {row.peak:9s}"
    found, measured = peak_mib(row, record), measured_mib(row)
    if found is None:
        return f"{head} FAILED: {record.get('error')}"
    if measured is None:
        failed = record.get(str(row.failed_micro_batch_size), {}).get("reserved_mib")
        return f"{head} ran at {found:7.0f} MiB" + ("" if failed is None else f", failed at {failed:7.0f} MiB")
    if row.ran_out:
        return f"{head} ran out of memory   predicted {found:7.0f} MiB"
    rivals = " ".join(f"{name} {error:.1%}" for name, error in row.rivals.items())
    return f"{head} measured {measured:7.0f}  predicted {found:7.0f} MiB  {found / measured - 1:+7.1%}  {rivals}"


def print_scores(done: Sequence[Predicted]) -> None:
    """Print the scores of every family, and beside the xMem rows those of published estimators."""
    failed = [row.key for row, record in done if "error" in record]
    print(f"\n{len(done)} rows, {len(failed)} could not be estimated" + (f": {', '.join(failed)}" if failed else ""))
    for family, members in groupby(sorted(done, key=lambda each: each[0].family), key=lambda each: each[0].family):
        rows = list(members)
        if family == "timm-interval":
            _print_intervals(rows)
            continue
        if rows[0][0].peak is Peak.PROCESS:
            _print_process_scores(family, rows)
        else:
            print(_score_line(family, errors_of(rows)))
        if family.startswith("xmem"):
            _print_rivals(rows)
    studied = [each for each in done if each[0].family.startswith("xmem")]
    if studied:
        print(_score_line("xmem, all", errors_of(studied)))
        _print_rivals(studied)
        _print_verdicts(studied)


def errors_of(rows: Iterable[Predicted], *, context_mib: float | None = None) -> list[float]:
    """Return the signed relative errors of the rows that ran and were estimated."""
    pairs = [
        (peak_mib(row, record, context_mib=context_mib), measured_mib(row)) for row, record in rows if not row.ran_out
    ]
    return relative_errors([(found, known) for found, known in pairs if found is not None and known is not None])


def _score_line(name: str, errors: Sequence[float]) -> str:
    if not errors:
        return f"{name:28s} no row"
    sizes = f"median {median_error(errors):6.2%}, p90 {percentile_error(errors, 0.9):6.1%}"
    below = f"under {share_below(errors):4.0%}, more than 3 % under {share_below(errors, UNSAFE_BELOW):4.0%}"
    return f"{name:28s} {len(errors):3d} rows: {sizes}, {below}"


def _print_rivals(rows: Sequence[Predicted]) -> None:
    names = dict.fromkeys(name for row, _ in rows for name in row.rivals)
    for rival in names:
        errors = [row.rivals[rival] for row, _ in rows if not row.ran_out and rival in row.rivals]
        if errors:
            print(
                f"    {rival:10s} on {len(errors):3d} of them: median {statistics.median(errors):6.2%}"
                f", p90 {percentile_error(errors, 0.9):6.1%}"
            )


def _print_process_scores(family: str, rows: Sequence[Predicted]) -> None:
    """Score with the catalogue's context, and with one measured on the source's smallest row, which is left out."""
    print(_score_line(f"{family}, context assumed", errors_of(rows)))
    known = [each for each in rows if peak_mib(*each) is not None]
    smallest = min(known, key=lambda each: each[0].measured_mib or 0)
    row, record = smallest
    held_mib = (row.measured_mib or 0) - record[str(row.recipe.micro_batch_size)]["reserved_mib"]
    context_mib = held_mib if row.context_mib is None else row.context_mib
    rest = [each for each in known if each is not smallest]
    print(_score_line(f"{family}, context measured", errors_of(rest, context_mib=context_mib)))


def _print_intervals(rows: Sequence[Predicted]) -> None:
    """Count the rows that one budget explains: what ran is below it and what failed above."""
    spans = [
        (
            record[str(row.recipe.micro_batch_size)]["reserved_mib"],
            record.get(str(row.failed_micro_batch_size), {}).get("reserved_mib", float("inf")),
        )
        for row, record in rows
        if "error" not in record
    ]
    budget, consistent = max(
        ((budget, sum(ran <= budget < failed for ran, failed in spans)) for budget in range(20000, 24577, 64)),
        key=lambda each: each[1],
    )
    print(f"timm-interval: {consistent} of {len(spans)} rows agree with one reserved budget, {budget} MiB of 24 GiB")


def _print_verdicts(rows: Sequence[Predicted]) -> None:
    for name, context_mib in (("with the study's context", STUDY_CONTEXT_MIB), ("with the catalogue's", None)):
        verdicts = [each for row, record in rows if (each := _verdict(row, record, context_mib)) is not None]
        wrong = sum(each.is_success is False for each in verdicts)
        unknown = sum(each.is_success is None for each in verdicts)
        conserved = statistics.mean(each.conserved_mib for each in verdicts if each.is_success is not None) / 1024
        outcomes = sum(not each.outcome_is_right for each in verdicts)
        print(
            f"    {name}: estimation failures {wrong} of {len(verdicts) - unknown} runs that can be judged"
            f" ({unknown} cannot), of these wrong about the card {outcomes}; memory conserved {conserved:.2f} GiB a run"
        )


def _verdict(row: Row, record: dict[str, Any], context_mib: float | None) -> Verdict | None:
    found = record.get(str(row.recipe.micro_batch_size))
    if found is None:
        return None
    card_mib = find_card(row.device).total_bytes / MIB
    predicted = found["reserved_mib"] + (found["context_mib"] if context_mib is None else context_mib)
    measured = measured_mib(row)
    fit_mib = min((each for each in (row.smallest_fit_mib, measured) if each), default=None)
    return Verdict(
        card_mib=card_mib,
        predicted_mib=predicted,
        ran_out=row.ran_out,
        fits_under_prediction=cap_verdict(
            predicted_mib=predicted,
            card_mib=card_mib,
            smallest_fit_mib=fit_mib,
            largest_failure_mib=row.largest_failure_mib,
        ),
    )


def write_markdown(path: Path, done: Sequence[Predicted]) -> None:
    """Write every row as a table, family by family."""
    lines = ["# Rows", "", "Written by `accuracy.py --markdown`; MiB.", ""]
    by_family: Callable[[Predicted], str] = lambda each: each[0].family  # noqa: E731 - used twice here
    for family, members in groupby(sorted(done, key=by_family), key=by_family):
        lines += [f"## {family}", "", "| run | card | batch | peak | measured | predicted | error |"]
        lines += ["|---|---|---:|---|---:|---:|---:|"]
        lines += [_markdown_row(row, record) for row, record in members]
        lines.append("")
    path.write_text("\n".join(lines))


def _markdown_row(row: Row, record: dict[str, Any]) -> str:
    head = f"| {row.model} | {row.device} | {row.recipe.micro_batch_size} | {row.peak} |"
    found, measured = peak_mib(row, record), measured_mib(row)
    if found is None:
        return f"{head} {measured or ''} | failed | |"
    if row.ran_out:
        return f"{head} out of memory | {found:.0f} | |"
    if measured is None:
        failed = record.get(str(row.failed_micro_batch_size), {}).get("reserved_mib")
        beyond = "" if failed is None else f"failed at {row.failed_micro_batch_size}: {failed:.0f}"
        return f"{head} ran | {found:.0f} | {beyond} |"
    return f"{head} {measured:.0f} | {found:.0f} | {found / measured - 1:+.1%} |"
