"""Where a command writes: results on stdout, or on stderr while stdout carries JSON."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from memplan.run_names import store_option

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from memplan.patches import ConfigPatch
    from memplan.plans import Plan


_LOG_WIDTH = 1000  # characters; few lines are as long, and none of a patch should be


def console_for(*, to_stderr: bool = False) -> Console:
    """Make the console of a command: as wide as the terminal; in a file, wide enough for a patch to be copied."""
    from rich.console import Console

    console = Console(stderr=to_stderr, soft_wrap=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _LOG_WIDTH
    return console


def show(*parts: RenderableType) -> None:
    """Print renderables on stdout."""
    console = console_for()
    for part in parts:
        console.print(part)


def say(console: Console, line: str) -> None:
    """Print a line that is meant to be copied: as it is, on one line."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def say_how_to_run(console: Console, plan: Plan) -> None:
    """Say with which line to train by the plan of a training command; nothing for any other plan."""
    if plan.command is not None:
        say(console, f"\nrun it with:  {plan.command}")


def say_how_to_apply(console: Console, run_id: str, store: Path) -> None:
    """Say which line applies the patch of a run."""
    say(console, f"\napply it with:  memplan apply {run_id}{store_option(store)}")


def say_written(console: Console, path: Path, *, use: str = "") -> None:
    """Say that a file was written, and what it is good for; what goes to a pipe or device speaks for itself."""
    if path.is_file():
        say(console, f"wrote {path}{use}")


def say_diff_was_written(console: Console, path: Path, patch: ConfigPatch) -> None:
    """Say that a patch's diff was written, and in which folder it is to be applied where that is not this one."""
    is_here = Path(patch.root_path) == Path.cwd()
    say_written(console, path, use="" if is_here else f", which git apply or patch -p1 takes in {patch.root_path}")


def say_what_was_written(console: Console, patch: ConfigPatch, *, undone: bool = False) -> None:
    """Say for every file of a patch what happened to it."""
    for each in patch.files:
        removed = undone and each.original_text is None
        say(console, f"{'removed' if removed else 'restored' if undone else 'wrote'} {each.path}")
