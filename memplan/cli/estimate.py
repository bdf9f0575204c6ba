"""`memplan estimate`: predict a step without a device."""

from __future__ import annotations

from typing import Annotated

import typer

from memplan.cli.options import (
    AsJson,
    Budget,
    Config,
    Device,
    Format,
    KnobMap,
    Precisions,
    WorkloadName,
)
from memplan.cli.terminal import console_for, show


def estimate(
    config: Config,
    device: Device = None,
    batch_size: Annotated[str | None, typer.Option("--batch-size", help="Micro-batches, e.g. 8,16,32.")] = None,
    precision: Precisions = None,
    budget: Budget = None,
    workload: WorkloadName = None,
    knobs: KnobMap = None,
    format_name: Format = None,
    as_json: AsJson = False,
) -> None:
    """Predict what one training step needs on a device, without one."""
    from memplan.configs import read_config
    from memplan.planner import estimate_config
    from memplan.planning.options import parse_knob_keys, parse_precisions, parse_sizes
    from memplan.report import console as views
    from memplan.report.live import LiveView
    from memplan.report.machine_readable import to_json
    from memplan.units import parse_bytes

    with LiveView(console_for(to_stderr=True)) as view:
        estimates = estimate_config(
            read_config(
                config, format_name=format_name, knob_keys=parse_knob_keys(knobs or []), workload_target=workload
            ),
            device=device,
            budget_bytes=parse_bytes(budget) if budget else None,
            micro_batch_sizes=parse_sizes(batch_size),
            precisions=parse_precisions(precision),
            observer=view,
        )
    if as_json:
        typer.echo(to_json({"estimates": [each.to_dict() for each in estimates]}))
    else:
        show(views.estimate_table(estimates), *([views.breakdown_view(estimates[0])] if len(estimates) == 1 else []))
