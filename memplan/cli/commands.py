"""The group of memplan's commands, which refuses what it cannot parse in one line, as memplan does everything else."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from memplan.errors import UsageError

_NOT_UNDERSTOOD: type[Exception] = typer.BadParameter.mro()[1]  # Click's UsageError, also where Typer brings its own


class Commands(TyperGroup):
    """Commands whose usage errors are memplan's: without frames, and in the document of ``--json``."""

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> Any:
        """Read what stands before the command.

        Raises:
            UsageError: there is no such option.
        """
        shows_help = not args
        try:
            return super().make_context(info_name, args, *rest, **extra)
        except _NOT_UNDERSTOOD as error:
            if shows_help:
                raise
            raise _one_line(error, asked="memplan") from None

    def invoke(self, ctx: Any) -> Any:
        """Read what stands behind the command, and run it.

        Raises:
            UsageError: there is no such command or option, or one lacks its value.
        """
        try:
            return super().invoke(ctx)
        except _NOT_UNDERSTOOD as error:
            raise _one_line(error, asked=f"memplan {ctx.invoked_subcommand or ''}".rstrip()) from None


def _one_line(error: Any, *, asked: str) -> UsageError:
    """Take over what Click says; its further sentence, where it has one, is what to do."""
    problem, _, hint = (_uncapitalised(each) for each in error.format_message().rstrip(".").partition(". "))
    question, mark, _ = hint.partition("?")  # which Typer repeats where Click asks it, too
    return UsageError(problem, hint=question + mark or f"{asked} --help lists what there is")


def _uncapitalised(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
