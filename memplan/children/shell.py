"""A child that becomes a command line of the user's."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping


def become_shell_command(text: str, *, working_folder: str, environment: Mapping[str, str]) -> NoReturn:
    """In the child, within :func:`memplan.children.serve`: replace this process by a shell that runs a command line.

    The command still ends with the parent, and with it all that it has started. It inherits no signal handling of
    Python's, but ignores SIGUSR1 until a process of its own wants it.

    Args:
        text: the command line, for ``bash``, from which users have it, or ``sh`` where there is none.
        working_folder: where it starts.
        environment: variables set on top of this process's own.
    """
    os.chdir(working_folder)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    for left_out in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(left_out, signal.SIG_DFL)
    shell = shutil.which("bash") or "/bin/sh"
    os.execve(shell, [Path(shell).name, "-c", text], {**os.environ, **environment})  # noqa: S606 - the user's command
