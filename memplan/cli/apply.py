"""`memplan apply`: apply a stored plan's patch, or take it back."""

from __future__ import annotations

from typing import Annotated

import typer

from memplan.cli.options import Run, Store
from memplan.cli.terminal import console_for, say_what_was_written
from memplan.run_names import DEFAULT_STORE


def apply(
    run: Run,
    undo: Annotated[bool, typer.Option("--undo", help="Put the files back as they were before the patch.")] = False,
    store: Store = DEFAULT_STORE,
) -> None:
    """Apply the patch of a stored plan, or take it back."""
    from memplan.configs import apply_patch, undo_patch
    from memplan.planning.stored_runs import stored_patch

    patch = stored_patch(store, run)
    if undo:
        undo_patch(patch)
    else:
        apply_patch(patch)
    say_what_was_written(console_for(), patch, undone=undo)
