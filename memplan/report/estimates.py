"""Estimates for the terminal: a table of several recipes; for one recipe its components and possible savings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from memplan.report.layout import BAD, GOOD, QUIET, hanging, plain_table, spaced
from memplan.report.wording import RECIPE_SIZES, bytes_text, component_text, outcome_text, share_text
from memplan.results import OutcomeKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from memplan.recipe import Precision
    from memplan.results import DrawnSteps, Estimate, LargestMicroBatch, PeakShare, Saving

_SHARES_SHOWN = 8
_REMARK_INDENT = 2


def estimates_view(estimates: Sequence[Estimate]) -> RenderableType:
    """Compare estimates of several recipes, on one device or several."""
    first = estimates[0]
    devices = {each.device_name for each in estimates}
    on_several = len(devices) > 1
    where = f"{len(devices)} devices" if on_several else f"{first.device_name} ({bytes_text(first.device_total_bytes)})"
    all_fit = all(each.outcome is OutcomeKind.FITS for each in estimates)
    searches = _searches_beyond_peaks(estimates)
    fragments = any(each.fragments for each in estimates)
    table = plain_table(
        f"{first.workload_name} on {where}",
        *(("device",) if on_several else ()), "recipe", "allocated", "reserved", "process", "util", "peak in",
        *(("search",) if searches else ()), *(("drawn",) if fragments else ()), *(() if all_fit else ("outcome",)),
    )  # fmt: skip
    for each in estimates:
        table.add_row(
            *((each.device_name,) if on_several else ()),
            str(each.recipe),
            bytes_text(each.peak_allocated_bytes),
            bytes_text(each.peak_reserved_bytes),
            bytes_text(each.peak_process_bytes),
            Text(share_text(each.utilisation), style=GOOD if each.utilisation <= 1 else BAD),
            str(each.peak_phase),
            *((bytes_text(each.peak_search_bytes),) if searches else ()),
            *((bytes_text(each.drawn.peak_reserved_bytes if each.drawn else None),) if fragments else ()),
            *(() if all_fit else (outcome_text(each.outcome),)),
        )
    return Group(table, _quiet_lines(_legend(estimates)))


def _searches_beyond_peaks(estimates: Sequence[Estimate]) -> bool:
    """Whether the first step reserves more for cuDNN's search for algorithms than any later one, in some recipe."""
    return any((each.peak_search_bytes or 0) > each.peak_reserved_bytes for each in estimates)


def _legend_of_drawn(drawn: Sequence[DrawnSteps]) -> Iterator[str]:
    """Say what the allocator comes to hold where samples vary, and what keeps it from that."""
    if not drawn:
        return
    steps, most_bytes = drawn[0].steps, max(each.peak_reserved_expandable_bytes for each in drawn)
    yield f"drawn: reserved within {steps} steps on batches of random samples, as blocks of one size seldom fit another"
    yield f"  PYTORCH_ALLOC_CONF=expandable_segments:True keeps it within {bytes_text(most_bytes)}"


def _legend(estimates: Sequence[Estimate]) -> Iterator[str]:
    """Say how recipes are written, and how far the process peaks may be off where something leaves them open."""
    yield f"recipe: precision, {RECIPE_SIZES}"
    if _searches_beyond_peaks(estimates):
        yield "search: reserved in the first step while cuDNN tries its algorithms (benchmark mode), if there is room"
    yield from _legend_of_drawn([each.drawn for each in estimates if each.drawn and each.fragments])
    if any(each.outcome is OutcomeKind.ALLOCATOR_RETRIES for each in estimates):
        short = outcome_text(OutcomeKind.ALLOCATOR_RETRIES)
        yield f"{short}: runs, but only by returning cached memory to the driver, which is slow"
    ranges = [(each.peak_process_bytes, found) for each in estimates if (found := each.peak_process_range_bytes)]
    if not ranges:
        return
    less = bytes_text(max(peak - low for peak, (low, _) in ranges))
    more = bytes_text(max(high - peak for peak, (_, high) in ranges))
    is_context_open = any(low < peak for peak, (low, _) in ranges)
    off = f"up to {less} less or {more} more" if is_context_open else f"up to {more} more"
    if less == more:
        off = f"give or take {less}"
    causes = ["the context is not measured"] if is_context_open else []
    if any(each.samples_vary for each in estimates):
        causes.append("samples may differ")
    yield f"process: {off}, as {' and '.join(causes)}; what is not counted comes on top"


def largest_table(found: Sequence[LargestMicroBatch]) -> Table:
    """Show the largest micro-batch of each precision within the band's upper edge, and within the device."""
    title = "Largest micro-batch"
    rows: dict[tuple[str, Precision], list[LargestMicroBatch]] = {}
    for each in found:
        rows.setdefault((each.device_name, each.precision), []).append(each)
    if len({device for device, _ in rows}) == 1:
        limits = {each.share: f"within {share_text(each.share)} ({bytes_text(each.limit_bytes)})" for each in found}
        table = plain_table(title, "precision", *limits.values())
        for (_, precision), sizes in rows.items():
            table.add_row(precision, *map(_size_text, sizes))
        return table
    shares = dict.fromkeys(f"within {share_text(each.share)}" for each in found)
    table = plain_table(title, "device", "memory", "precision", *shares)
    for (device, precision), sizes in rows.items():
        table.add_row(device, bytes_text(sizes[0].device_total_bytes), precision, *map(_size_text, sizes))
    return table


def _size_text(found: LargestMicroBatch) -> str:
    if found.micro_batch_size is None:
        return "not even 1"
    return f"{found.micro_batch_size} or more" if found.reached_cap else str(found.micro_batch_size)


def savings_view(savings: Sequence[Saving]) -> RenderableType:
    """Show what each change would take off the process peak, or why that cannot be said."""
    table = plain_table("What one change would save", "change", "peak process", "saves")
    obstacles = []
    for each in savings:
        if each.saved_bytes is None:
            obstacles.append(f"{each.change}: {each.obstacle}")
        else:
            table.add_row(each.change, bytes_text(each.peak_process_bytes), bytes_text(each.saved_bytes))
    return spaced(Group(*([table] if table.row_count else []), _quiet_lines(obstacles)))


def breakdown_view(estimate: Estimate) -> RenderableType:
    """Show where the process peak of one estimate goes, and who holds most of it."""
    table = plain_table(f"At the peak of {estimate.recipe}", "component", "bytes", "share")
    for name, held_bytes in estimate.breakdown.items():
        if held_bytes:
            share = held_bytes / estimate.peak_process_bytes
            table.add_row(component_text(name, estimate.device_name), bytes_text(held_bytes), share_text(share))
    table.add_section()
    table.add_row("peak process", bytes_text(estimate.peak_process_bytes), "100%")
    if estimate.peak_process_range_bytes is not None:
        table.add_row("at least, at most", " to ".join(map(bytes_text, estimate.peak_process_range_bytes)), "")
    parts: list[RenderableType] = [table]
    for title, shares in (("module", estimate.top_modules), ("operator", estimate.top_operators)):
        if shares:
            parts.append(_shares_table(title, shares, estimate))
    return Group(*(spaced(part) for part in parts))


def remarks_view(estimates: Sequence[Estimate], of_all: Sequence[str] = ()) -> RenderableType:
    """Show once each how estimates were made, the notes on all and on each of them, and what is not counted."""
    methods = [f"method: {each.method}" for each in estimates]
    notes = [f"note: {note}" for note in (*of_all, *_notes(estimates))]
    uncounted = [f"not counted: {what}" for each in estimates for what in each.uncounted]
    return spaced(_quiet_lines(dict.fromkeys([*methods, *notes, *uncounted])))


def _notes(estimates: Sequence[Estimate]) -> Iterator[str]:
    """Yield each note once; what is not said of all recipes after those that it is said of."""
    recipes = dict.fromkeys(str(each.recipe) for each in estimates)
    for note in dict.fromkeys(said for each in estimates for said in each.notes):
        meant = dict.fromkeys(str(each.recipe) for each in estimates if note in each.notes)
        yield note if meant == recipes else f"{'; '.join(meant)}: {note}"


def _quiet_lines(lines: Iterable[str]) -> Group:
    return hanging((Text(line, style=QUIET) for line in lines), indent=_REMARK_INDENT)


def _shares_table(title: str, shares: Sequence[PeakShare], estimate: Estimate) -> Table:
    """Show the largest holders with their share of the allocated peak; modules that repeat are one row."""
    allocated_bytes = estimate.peak_allocated_bytes
    table = plain_table(f"Who holds the allocated peak, by {title}", title, "bytes", "share")
    for each in shares[:_SHARES_SHOWN]:
        times = f" ({each.holder_count} of them)" if each.holder_count > 1 else ""
        name = Text(each.name or "(model itself, loss, optimizer)").append(times, style=QUIET)
        table.add_row(name, bytes_text(each.held_bytes), share_text(each.held_bytes / allocated_bytes))
    shown_bytes = sum(each.held_bytes for each in shares[:_SHARES_SHOWN])
    if (rest_bytes := _held_bytes(estimate) - shown_bytes) > 0:
        table.add_row("(all others)", bytes_text(rest_bytes), share_text(rest_bytes / allocated_bytes))
    return table


def _held_bytes(estimate: Estimate) -> int:
    """Return what all blocks hold at the allocated peak."""
    parts = estimate.breakdown
    return parts.total_bytes - parts.allocator_slack - parts.context
