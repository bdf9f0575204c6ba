"""`memplan probe`: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memplan.cli.options import (
    DEFAULT_STORE,
    AsJson,
    Budget,
    Config,
    Device,
    Format,
    GlobalBatch,
    KnobMap,
    LrRule,
    MaxUtil,
    MinUtil,
    Precisions,
    Store,
    WorkloadName,
    WorldSize,
)
from memplan.cli.terminal import console_for, say, say_what_was_written

if TYPE_CHECKING:
    from rich.console import Console

    from memplan.patches import ConfigPatch


def probe(
    config: Config,
    device: Device = None,
    max_util: MaxUtil = None,
    min_util: MinUtil = None,
    budget: Budget = None,
    precision: Precisions = None,
    global_batch: GlobalBatch = None,
    lr_rule: LrRule = None,
    world_size: WorldSize = None,
    workload: WorkloadName = None,
    knobs: KnobMap = None,
    format_name: Format = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Patch the config itself, not a child of it.")] = False,
    apply_now: Annotated[bool, typer.Option("--apply", help="Apply the patch at once.")] = False,
    output: Annotated[Path | None, typer.Option("--output", help="Write the patch to this file.")] = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Find the recipe that uses the device well, by an estimate and live trials, and write a patch for the config."""
    from memplan.configs import read_config
    from memplan.planner import Planning
    from memplan.planning.options import parse_knob_keys, request_from
    from memplan.planning.request import subject_of_config
    from memplan.report.console import heading, plan_view
    from memplan.report.facts import report_run
    from memplan.report.live import LiveView
    from memplan.report.machine_readable import run_to_json

    opened = read_config(
        config, format_name=format_name, knob_keys=parse_knob_keys(knobs or []), workload_target=workload
    )
    request = request_from(
        opened.memplan_options,
        device=device,
        budget=budget,
        max_util=max_util,
        min_util=min_util,
        precision=precision,
        global_batch=global_batch,
        lr_rule=lr_rule,
        world_size=world_size,
        in_place=in_place,
        store=store,
    )
    console = console_for(to_stderr=as_json)
    subject = subject_of_config(opened, world_size=request.world_size)
    planning = Planning(subject, request)
    console.print(heading(opened, subject.current, planning.device, planning.band))
    with LiveView(console) as view:
        plan = planning.plan(view)
    found = report_run(plan.run_id, plan.trials, plan)
    if as_json:
        typer.echo(run_to_json(found))
    else:
        console.print(plan_view(found))
    if plan.config_patch is not None:
        _deliver(plan.run_id, plan.config_patch, console, output=output, apply_now=apply_now, store=store)


def _deliver(
    run_id: str, patch: ConfigPatch, console: Console, *, output: Path | None, apply_now: bool, store: Path
) -> None:
    """Write the patch where the user wants it, or say which line applies it."""
    from memplan.configs import apply_patch
    from memplan.textfiles import write_text_atomically

    if output is not None:
        write_text_atomically(output, patch.diff)
        say(console, f"wrote {output}")
    if apply_now:
        apply_patch(patch)
        say_what_was_written(console, patch)
    else:
        where = "" if store == DEFAULT_STORE else f" --store {store}"
        say(console, f"\napply it with:  memplan apply {run_id}{where}")
