"""The command line: parse, call the planner, render; the last catcher of errors and the only exit codes."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
import traceback
from enum import IntEnum
from typing import Annotated, NoReturn

import typer

from memplan.cli.apply import apply
from memplan.cli.commands import Commands
from memplan.cli.estimate import estimate
from memplan.cli.gpus import gpus
from memplan.cli.probe import probe
from memplan.cli.report import report
from memplan.cli.trial import trial
from memplan.errors import (
    ConfigError,
    DeviceError,
    MemplanError,
    MissingExtraError,
    NothingFitsError,
    OutputError,
    StoreError,
    UsageError,
    WorkloadError,
    raised_text,
)
from memplan.json_documents import json_document
from memplan.version import __version__

_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ExitCode(IntEnum):
    """What the exit status says.

    ``USAGE`` is for what the user can mend: the command line, the config, the workload, the device, folders and files
    that cannot be written, what is installed.
    """

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    NOTHING_FITS = 3
    INTERRUPTED = 130


app = typer.Typer(
    cls=Commands,
    help="Plan the GPU memory of a PyTorch training step before the run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _say_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"memplan {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of memplan's own errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Plan the GPU memory of a PyTorch training step before the run."""
    del debug, version  # read by main, which also has to know it where parsing fails; told by its callback


for command in (estimate, probe, report, trial, apply, gpus):
    app.command()(command)


_FOR_THE_USER = (
    UsageError, ConfigError, WorkloadError, DeviceError, StoreError, OutputError, MissingExtraError,
)  # fmt: skip


def _exit_code_of(error: MemplanError) -> ExitCode:
    if isinstance(error, NothingFitsError):
        return ExitCode.NOTHING_FITS
    if isinstance(error, _FOR_THE_USER):
        return ExitCode.USAGE
    return ExitCode.UNEXPECTED


def _heed_endings() -> None:
    """Wind down at Ctrl-C, at a scheduler's or ``timeout``'s request to end, and where the terminal closes."""
    for number in _ENDINGS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # else the caller wants it ignored
            signal.signal(number, _interrupt_once)


def _interrupt_once(number: int, frame: object) -> NoReturn:
    """Wind down, and let the signals that follow not disturb that."""
    del number, frame
    for each in _ENDINGS:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def _write_what_the_encoding_can() -> None:
    """Have a stream whose encoding lacks a character write a question mark, in place of no plan."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def main() -> None:
    """Run the command line and exit with a code of :class:`ExitCode`."""
    _heed_endings()
    _write_what_the_encoding_can()
    debug = "--debug" in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != "--debug"]  # welcome before and after the command
    try:
        app()
    except MemplanError as error:
        if debug:
            traceback.print_exc()
            if error.detail:
                typer.echo(error.detail.rstrip(), err=True)
        typer.echo(f"memplan: {error}{'' if debug else _what_debug_shows(error.detail)}", err=True)
        _tell_programs(error)
        sys.exit(_exit_code_of(error))
    except SystemExit as ended:
        if ended.code == ExitCode.INTERRUPTED:
            command = next((each for each in sys.argv[1:] if not each.startswith("-")), "")
            resumes = "; finished trials are kept, and the same command resumes" if command == "probe" else ""
            typer.echo(f"memplan: interrupted{resumes}", err=True)
            _tell_programs(KeyboardInterrupt("interrupted"))
        raise
    except Exception as error:  # noqa: BLE001 - the last catcher: a bug of memplan's own, said in one line
        if debug:
            traceback.print_exc()
        typer.echo(f"memplan: unexpected {raised_text(error)}; --debug shows where", err=True)
        _tell_programs(error)
        sys.exit(ExitCode.UNEXPECTED)


def _what_debug_shows(detail: str | None) -> str:
    if not detail:
        return ""
    return f" (--debug shows {'the traceback' if 'Traceback' in detail else 'what it printed'})"


def _tell_programs(error: BaseException) -> None:
    """Write an error as the document of ``--json``, which nothing else has been written of then."""
    if "--json" in sys.argv:
        said = error if isinstance(error, MemplanError) else MemplanError(str(error))
        named = {"kind": type(error).__name__, "problem": said.problem, "where": said.where, "hint": said.hint}
        with contextlib.suppress(OSError):  # nobody reads it any more, or there is no room
            typer.echo(json_document({"error": {**named, "detail": said.detail}}))
