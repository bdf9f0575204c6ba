"""`memplan estimate`: predict a step without a device."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memplan.cli.options import (
    AsJson,
    Budget,
    Configs,
    Format,
    KnobMap,
    Precisions,
    TraceLimit,
    WorkloadName,
    WorldSize,
    writable_path,
)
from memplan.cli.terminal import console_for, say, show

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from memplan.planning.estimating import Predictions


def estimate(
    configs: Configs,
    device: Annotated[
        str | None,
        typer.Option(help="Card such as rtx-3090, size such as 24GiB, cuda:0, cpu, or several: t4,l4; default: auto."),
    ] = None,
    batch_size: Annotated[
        str | None, typer.Option("--batch-size", help="Micro-batches, e.g. 8,16,32; default: the config's.")
    ] = None,
    precision: Precisions = None,
    budget: Budget = None,
    world_size: WorldSize = None,
    snapshot: Annotated[
        Path | None,
        typer.Option(
            "--snapshot", help="Write the predicted timeline for PyTorch's memory visualiser.", callback=writable_path
        ),
    ] = None,
    savings: Annotated[
        bool,
        typer.Option("--savings/--no-savings", help="Estimate what would save memory, with a trace for each change."),
    ] = True,
    trace_limit: TraceLimit = None,
    workload: WorkloadName = None,
    knobs: KnobMap = None,
    format_name: Format = None,
    as_json: AsJson = False,
) -> None:
    """Predict what one training step needs on a device, without one."""
    from memplan.configs import MemplanOptions, read_config
    from memplan.errors import WorkloadError
    from memplan.planning.estimating import EstimateRequest, estimate_config
    from memplan.planning.options import parse_devices, parse_duration, parse_knob_keys, parse_precisions, parse_sizes
    from memplan.report.live import LiveView

    sizes = parse_sizes(batch_size)
    opened = read_config(
        *configs,
        format_name=format_name,
        knob_keys=parse_knob_keys(knobs or []),
        workload_target=workload,
        micro_batch_size=sizes[0] if sizes else None,
    )
    request = EstimateRequest(
        devices=parse_devices(device),
        options=MemplanOptions(budget=budget),
        micro_batch_sizes=sizes,
        precisions=parse_precisions(precision),
        world_size=world_size,
        with_savings=savings,
        with_snapshot=snapshot is not None,
        trace_limit_s=parse_duration(trace_limit, option="trace-limit"),
    )
    console = console_for(to_stderr=True)
    try:
        with LiveView(console) as view:
            found = estimate_config(opened, request, view)
    except WorkloadError:
        for note in opened.notes:  # what was left open may be the cause
            say(console, f"note: {note}")
        raise
    print_results = _document_printer(found) if as_json else _table_printer(found)
    # after the tables are made: what fails there leaves no file
    if snapshot is not None and found.snapshot is not None:
        _write_snapshot(snapshot, found.snapshot, console_for(to_stderr=as_json))
    print_results()


def _document_printer(found: Predictions) -> Callable[[], None]:
    from memplan.json_documents import json_document

    estimates = [each.to_dict() for each in found.estimates]
    answers = {"largest": found.largest, "savings": found.savings, "notes": found.notes}
    return partial(typer.echo, json_document({"estimates": estimates, **answers}))


def _table_printer(found: Predictions) -> Callable[[], None]:
    from memplan.report.estimates import breakdown_view, estimates_view, largest_table, remarks_view, savings_view
    from memplan.report.layout import spaced

    return partial(
        show,
        estimates_view(found.estimates),
        spaced(largest_table(found.largest)),
        *([savings_view(found.savings)] if found.savings else []),
        *([breakdown_view(found.estimates[0])] if len(found.estimates) == 1 else []),
        remarks_view(found.estimates, found.notes),
    )


def _write_snapshot(path: Path, content: bytes, console: Console) -> None:
    from memplan.textfiles import write_bytes_atomically

    write_bytes_atomically(path, content)
    say(console, f"wrote {path}; open it at https://pytorch.org/memory_viz")
