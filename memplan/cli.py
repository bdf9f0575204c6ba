"""The command line: parse, call the planner, render; the only catcher of memplan's errors and the only exit codes."""

from __future__ import annotations

import sys
import traceback
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memplan.errors import (
    ConfigError,
    DeviceError,
    MemplanError,
    NoDriverError,
    NothingFitsError,
    UsageError,
    WorkloadError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console, RenderableType

    from memplan.results import ConfigPatch


class ExitCode(IntEnum):
    """What the exit status says."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    NOTHING_FITS = 3
    INTERRUPTED = 130


app = typer.Typer(
    help="Plan the GPU memory of a PyTorch training step before the run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Config = Annotated[Path, typer.Argument(help="Your training config.", show_default=False)]
Device = Annotated[
    str | None, typer.Option(help="Card such as rtx-3090, size such as 24GiB, cuda:0, cpu, or auto (the default).")
]
MaxUtil = Annotated[float | None, typer.Option("--max-util", help="Upper edge of the band; by default 0.8.")]
MinUtil = Annotated[float | None, typer.Option("--min-util", help="Lower edge of the band; by default 0.6.")]
Budget = Annotated[str | None, typer.Option(help="Memory the step may use, e.g. 10GiB; default: the whole device.")]
Precisions = Annotated[str | None, typer.Option("--precision", help="Precisions to compare, e.g. fp32,fp16,bf16.")]
GlobalBatch = Annotated[int | None, typer.Option("--global-batch", help="Hold this global batch by accumulation.")]
LrRule = Annotated[str | None, typer.Option("--lr-rule", help="Learning-rate scaling: linear (default), sqrt or none.")]
WorkloadName = Annotated[str | None, typer.Option("--workload", help="package.module:function making the workload.")]
KnobMap = Annotated[list[str] | None, typer.Option("--map", help="Where a knob is: micro_batch_size=data.batch_size.")]
Format = Annotated[str | None, typer.Option("--format", help="Config ecosystem, where it is not recognised rightly.")]
Store = Annotated[Path, typer.Option(help="Folder of the trial journal.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout; all else goes to stderr.")]
RunId = Annotated[str | None, typer.Argument(help="Run to show; default: the last one.", show_default=False)]
DEFAULT_STORE = Path(".memplan")


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of memplan's own errors.")] = False,
) -> None:
    """Plan the GPU memory of a PyTorch training step before the run."""
    del debug  # read by main, which also has to know it where parsing fails


@app.command()
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
    from memplan.planning.options import parse_precisions, parse_sizes
    from memplan.report import console as views
    from memplan.report.live import LiveView
    from memplan.report.machine_readable import to_json
    from memplan.units import parse_bytes

    with LiveView(_console(to_stderr=True)) as view:
        estimates = estimate_config(
            read_config(config, format_name=format_name, knob_keys=_knob_keys(knobs), workload_target=workload),
            device=device,
            budget_bytes=parse_bytes(budget) if budget else None,
            micro_batch_sizes=parse_sizes(batch_size),
            precisions=parse_precisions(precision),
            observer=view,
        )
    if as_json:
        typer.echo(to_json({"estimates": [each.to_dict() for each in estimates]}))
    else:
        _show(views.estimate_table(estimates), *([views.breakdown_view(estimates[0])] if len(estimates) == 1 else []))


@app.command()
def probe(
    config: Config,
    device: Device = None,
    max_util: MaxUtil = None,
    min_util: MinUtil = None,
    budget: Budget = None,
    precision: Precisions = None,
    global_batch: GlobalBatch = None,
    lr_rule: LrRule = None,
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
    from memplan.planning.options import request_from
    from memplan.planning.request import subject_of_config
    from memplan.report.console import heading, plan_view
    from memplan.report.facts import report_run
    from memplan.report.live import LiveView
    from memplan.report.machine_readable import run_to_json

    opened = read_config(config, format_name=format_name, knob_keys=_knob_keys(knobs), workload_target=workload)
    request = request_from(
        opened.memplan_options,
        device=device,
        budget=budget,
        max_util=max_util,
        min_util=min_util,
        precision=precision,
        global_batch=global_batch,
        lr_rule=lr_rule,
        in_place=in_place,
        store=store,
    )
    console = _console(to_stderr=as_json)
    planning = Planning(subject_of_config(opened), request)
    console.print(heading(opened, planning.device, planning.band))
    with LiveView(console) as view:
        plan = planning.plan(view)
    found = report_run(plan.run_id, plan.trials, plan)
    if as_json:
        typer.echo(run_to_json(found))
    else:
        console.print(plan_view(found))
    if plan.patch is not None:
        _deliver(plan.run_id, plan.patch, console, output=output, apply_now=apply_now, store=store)


@app.command()
def report(
    run: RunId = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write a CSV file.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write an HTML page.")] = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Show estimated against measured memory, component by component and trial by trial."""
    from memplan.planner import stored_report
    from memplan.report.console import run_view
    from memplan.report.machine_readable import run_to_csv, run_to_json
    from memplan.report.page import run_to_html
    from memplan.textfiles import write_text_atomically

    found = stored_report(store, run)
    if csv is not None:
        write_text_atomically(csv, run_to_csv(found))
    if html is not None:
        write_text_atomically(html, run_to_html(found))
    if as_json:
        typer.echo(run_to_json(found))
    elif csv is None and html is None:
        _show(run_view(found))


@app.command()
def apply(
    run: Annotated[str, typer.Argument(help="Run whose patch to apply; `last` takes the last one.")],
    store: Store = DEFAULT_STORE,
) -> None:
    """Apply the patch of a stored plan."""
    from memplan.planner import apply_stored

    patch = apply_stored(store, None if run == "last" else run)
    _say(_console(), f"wrote {patch.target_path}")


@app.command()
def gpus(as_json: AsJson = False) -> None:
    """List the NVIDIA cards of this machine and who uses them."""
    from memplan.devices import CardReading, read_cards
    from memplan.report.cards import cards_view
    from memplan.report.machine_readable import to_json
    from memplan.results import plain

    cards: tuple[CardReading, ...] = ()
    no_driver = None
    try:
        cards = read_cards()
    except NoDriverError as error:
        no_driver = str(error)
    if as_json:
        typer.echo(to_json({"cards": plain(cards), "no_driver": no_driver}))
    elif no_driver is not None:
        typer.echo(no_driver)
    else:
        _show(cards_view(cards))


def _knob_keys(pairs: list[str] | None) -> Mapping[str, str]:
    from memplan.planning.options import parse_knob_keys

    return parse_knob_keys(pairs or [])


def _deliver(
    run_id: str, patch: ConfigPatch, console: Console, *, output: Path | None, apply_now: bool, store: Path
) -> None:
    """Write the patch where the user wants it, or say which line applies it."""
    from memplan.configs import apply_patch
    from memplan.textfiles import write_text_atomically

    if output is not None:
        write_text_atomically(output, patch.diff)
        _say(console, f"wrote {output}")
    if apply_now:
        apply_patch(patch)
        _say(console, f"wrote {patch.target_path}")
    else:
        where = "" if store == DEFAULT_STORE else f" --store {store}"
        _say(console, f"\napply it with:  memplan apply {run_id}{where}")


def _say(console: Console, line: str) -> None:
    """Print a line that is meant to be copied: as it is, on one line."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _console(*, to_stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=to_stderr, soft_wrap=False)


def _show(*parts: RenderableType) -> None:
    console = _console()
    for part in parts:
        console.print(part)


def _exit_code_of(error: MemplanError) -> ExitCode:
    if isinstance(error, NothingFitsError):
        return ExitCode.NOTHING_FITS
    if isinstance(error, UsageError | ConfigError | WorkloadError | DeviceError):
        return ExitCode.USAGE
    return ExitCode.UNEXPECTED


def main() -> None:
    """Run the command line and exit with a code of :class:`ExitCode`."""
    debug = "--debug" in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != "--debug"]  # welcome before and after the command
    try:
        app()
    except MemplanError as error:
        if debug:
            traceback.print_exc()
            if error.detail:
                typer.echo(error.detail.rstrip(), err=True)
        more = " (--debug shows the traceback)" if error.detail and not debug else ""
        typer.echo(f"memplan: {error}{more}", err=True)
        sys.exit(_exit_code_of(error))
    except SystemExit as ended:
        if ended.code == ExitCode.INTERRUPTED:
            resumes = "; finished trials are kept, and the same command resumes" if "probe" in sys.argv else ""
            typer.echo(f"memplan: interrupted{resumes}", err=True)
        raise
    except Exception as error:  # noqa: BLE001 - the last catcher: a bug of memplan's own, said in one line
        if debug:
            traceback.print_exc()
        typer.echo(f"memplan: unexpected {type(error).__name__}: {error}; --debug shows where", err=True)
        sys.exit(ExitCode.UNEXPECTED)
