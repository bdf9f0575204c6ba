"""The process that becomes a training command: ``python -m memplan.probe.commands.worker``, replaced by a shell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.children import become_shell_command, serve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """A filled command.

    Args:
        text: for the shell.
        working_folder: where it starts, absolute.
        environment: variables set on top of this process's own.
    """

    text: str
    working_folder: str
    environment: Mapping[str, str]


def main() -> None:
    """Become the command that was asked for."""
    serve(_become)


def _become(request: CommandLine, _reply: Callable[[object], None]) -> None:
    become_shell_command(request.text, working_folder=request.working_folder, environment=request.environment)


if __name__ == "__main__":
    main()
