"""`memplan report`: estimated against measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memplan.cli.options import AsJson, Run, Store, writable_path
from memplan.cli.terminal import console_for, say_how_to_apply, say_how_to_run, say_written, show
from memplan.run_names import DEFAULT_STORE, LAST_RUN

if TYPE_CHECKING:
    from memplan.report.facts import RunReport


def report(
    run: Run = LAST_RUN,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write a CSV file.", callback=writable_path)] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write an HTML page.", callback=writable_path)] = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Show estimated against measured memory, component by component and trial by trial."""
    from memplan.planning.stored_runs import stored_report
    from memplan.report.console import run_view
    from memplan.report.html import run_to_html
    from memplan.report.machine_readable import run_to_csv, run_to_json
    from memplan.textfiles import write_text_atomically

    found = stored_report(store, run)
    for path, render in ((csv, run_to_csv), (html, run_to_html)):
        if path is not None:
            write_text_atomically(path, render(found))
            say_written(console_for(to_stderr=as_json), path)
    if as_json:
        typer.echo(run_to_json(found))
    elif csv is None and html is None:
        show(run_view(found))
        _say_next_steps(found, store)


def _say_next_steps(found: RunReport, store: Path) -> None:
    if found.plan is None:
        return
    say_how_to_run(console_for(), found.plan)
    if found.plan.config_patch is not None and found.plan.config_patch.files:
        say_how_to_apply(console_for(), found.run_id, store)
