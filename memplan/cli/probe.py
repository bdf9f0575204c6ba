"""`memplan probe`: the main job."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memplan.cli.options import (
    AsJson,
    Budget,
    ConfigsIfAny,
    Device,
    Format,
    Fresh,
    GlobalBatch,
    KnobMap,
    LrRule,
    MaxBatch,
    MaxUtil,
    MinUtil,
    Precisions,
    Store,
    TraceLimit,
    TrialLimit,
    WorkloadName,
    WorldSize,
    whole_number,
    writable_path,
)
from memplan.cli.terminal import (
    console_for,
    say,
    say_diff_was_written,
    say_how_to_apply,
    say_how_to_run,
    say_what_was_written,
)
from memplan.run_names import DEFAULT_STORE

if TYPE_CHECKING:
    from rich.console import Console

    from memplan.plans import Plan


def probe(
    configs: ConfigsIfAny = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--command", help='Your own training command, e.g. "python train.py {config} --bs {micro_batch_size}".'
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps", parser=whole_number("steps"), help="With --command: optimizer steps of a trial; default: 10."
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size", parser=whole_number("batch-size"), help="With --command: micro-batch of the first trial."
        ),
    ] = None,
    device: Device = None,
    max_util: MaxUtil = None,
    min_util: MinUtil = None,
    budget: Budget = None,
    precision: Precisions = None,
    global_batch: GlobalBatch = None,
    max_batch: MaxBatch = None,
    lr_rule: LrRule = None,
    world_size: WorldSize = None,
    workload: WorkloadName = None,
    knobs: KnobMap = None,
    format_name: Format = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until as much memory is free as the plan may use.")
    ] = False,
    wait_limit: Annotated[
        str | None, typer.Option("--wait-limit", help="Longest time to wait, e.g. 30min; default: none.")
    ] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Patch the config itself, not a child of it.")] = False,
    loader: Annotated[
        bool | None,
        typer.Option("--loader/--no-loader", help="Let the patch also change workers and pinning of the data loader."),
    ] = None,
    apply_now: Annotated[bool, typer.Option("--apply", help="Apply the patch at once.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", help="Write the patch to this file.", callback=writable_path)
    ] = None,
    fresh: Fresh = False,
    trace_limit: TraceLimit = None,
    trial_limit: TrialLimit = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Find the recipe that uses the device well, by an estimate and live trials, and write a patch for the config."""
    from memplan import api
    from memplan.planning.options import parse_knob_keys
    from memplan.report.live import LiveView

    console = console_for(to_stderr=as_json)
    with LiveView(console) as view:
        plan = api.plan(
            configs or (),
            command=command,
            steps=steps,
            batch_size=batch_size,
            device=device,
            max_util=max_util,
            min_util=min_util,
            budget=budget,
            precision=precision,
            global_batch=global_batch,
            max_batch=max_batch,
            lr_rule=lr_rule,
            world_size=world_size,
            workload=workload,
            knobs=parse_knob_keys(knobs or []),
            format_name=format_name,
            in_place=in_place,
            loader=loader,
            wait=wait,
            wait_limit=wait_limit,
            trace_limit=trace_limit,
            trial_limit=trial_limit,
            fresh=fresh,
            store=store,
            observer=view,
        )
    if not as_json:
        _show_plan(plan, console, shown=view.heading_notes)
    _deliver(plan, console, output=output, apply_now=apply_now, store=store)
    if as_json:  # last: what fails before it is the document then
        _write_json(plan)


def _write_json(plan: Plan) -> None:
    from memplan.report.facts import report_run
    from memplan.report.machine_readable import run_to_json

    typer.echo(run_to_json(report_run(plan.run_id, plan.trials, plan)))


def _show_plan(plan: Plan, console: Console, *, shown: tuple[str, ...]) -> None:
    """Show a plan, without the notes that its heading showed."""
    from memplan.report.console import plan_view, run_view
    from memplan.report.facts import report_run

    rest = replace(plan, notes=tuple(each for each in plan.notes if each not in shown))
    found = report_run(plan.run_id, plan.trials, rest)
    console.print(plan_view(found) if plan.cached_from is None else run_view(found))
    say_how_to_run(console, plan)


def _deliver(plan: Plan, console: Console, *, output: Path | None, apply_now: bool, store: Path) -> None:
    """Write the patch where the user wants it, or say which line applies it; of several processes the first does."""
    from memplan.configs import deliver_patch
    from memplan.launchers import is_first_process

    if not is_first_process(os.environ):
        return
    patch = deliver_patch(plan.config_patch, output=output, apply=apply_now)
    if output is not None and patch is None:
        say(console, f"there is no patch, so {output} is not written")
    elif output is not None and patch is not None:
        say_diff_was_written(console, output, patch)
    if patch is not None and apply_now:
        say_what_was_written(console, patch)
    elif patch is not None:
        say_how_to_apply(console, plan.run_id, store)
