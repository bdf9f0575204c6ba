"""`memplan apply`: apply a stored plan's patch."""

from __future__ import annotations

from typing import Annotated

import typer

from memplan.cli.options import DEFAULT_STORE, Store
from memplan.cli.terminal import console_for, say


def apply(
    run: Annotated[str, typer.Argument(help="Run whose patch to apply; `last` takes the last one.")],
    store: Store = DEFAULT_STORE,
) -> None:
    """Apply the patch of a stored plan."""
    from memplan.planner import apply_stored

    patch = apply_stored(store, None if run == "last" else run)
    say(console_for(), f"wrote {patch.target_path}")
