"""`memplan trial`: one stored trial, looked at or run again."""

from __future__ import annotations

from typing import Annotated

import typer

from memplan.cli.options import AsJson, Run, Store, whole_number
from memplan.cli.terminal import console_for, say
from memplan.run_names import DEFAULT_STORE


def trial(
    run: Run,
    number: Annotated[
        int,
        typer.Argument(parser=whole_number("trial"), help="Number of the trial, as reports show it.", metavar="NUMBER"),
    ],
    look_only: Annotated[bool, typer.Option("--look", help="Show what is stored of it, and run nothing.")] = False,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Run a stored trial again, exactly as it was, and show what it printed."""
    from memplan.json_documents import json_document
    from memplan.planning.trials.rerun import rerun_trial, stored_trial
    from memplan.report.live import LiveView
    from memplan.report.one_trial import one_trial_view, output_text

    if look_only:
        found = stored_trial(store, run, number)
    else:
        with LiveView(console_for(to_stderr=True)) as view:
            found = rerun_trial(store, run, number, view)
    if as_json:
        typer.echo(json_document({"run_id": found.run_id, "trial": found.stored, "again": found.again}))
    else:
        console = console_for()
        console.print(one_trial_view(found.stored, found.again))
        say(console, f"\n{output_text(found.again or found.stored)}")
