"""Run a function in a fork of this process: what was imported before need not be imported again."""

from __future__ import annotations

import multiprocessing
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a function ended in its fork.

    Args:
        value: what it returned; None where it failed.
        failure: why it failed, with the traceback or the way the process died; None where it did not.
        peak_resident_bytes: largest resident set of the fork, with what was imported before it; None where it died.
    """

    value: Any
    failure: str | None
    peak_resident_bytes: int | None


def run_forked(function: Callable[..., Any], *arguments: Any, limit_s: float) -> Ended:
    """Call a function in a fork of this process and return how it ended; it is killed after ``limit_s`` seconds."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sending, function, arguments))
    process.start()
    sending.close()
    try:
        if not receiving.poll(limit_s):
            return Ended(value=None, failure=f"still running after {limit_s:g} s", peak_resident_bytes=None)
        ended: Ended = receiving.recv()
    except EOFError:
        process.join()
        return Ended(value=None, failure=f"died with status {process.exitcode}", peak_resident_bytes=None)
    else:
        return ended
    finally:
        process.kill()
        process.join()


def _answer(sending: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    value, failure = None, None
    try:
        value = function(*arguments)
    except Exception:  # noqa: BLE001 - a benchmark counts failures of any kind
        failure = traceback.format_exc()
    sending.send(Ended(value=value, failure=failure, peak_resident_bytes=_peak_resident_bytes()))


def _peak_resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * KIB
