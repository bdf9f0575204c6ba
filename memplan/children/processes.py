"""The parent's hold on a child process: whether it has ended, how to kill its session, and its exit status."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Protocol

import psutil

from memplan.children.protocol import LIFELINE_FD, MARK, REPLY_FD, PipeEnds
from memplan.errors import ChildError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class ChildProcess(Protocol):
    """A child that was started, however it was."""

    pid: int

    def has_ended(self) -> bool:
        """Whether the process has ended; its status may still be to be collected."""

    def kill(self) -> None:
        """Kill the process; of no effect where it has ended."""

    def wait(self) -> int:
        """Wait for the end and collect the exit status; negative is the signal that ended it."""


class StartedProcess:
    """A child that was started as ``python -m module``."""

    def __init__(self, module: str, environment: Mapping[str, str], ends: PipeEnds) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module],
                stdin=ends.request,
                stdout=ends.output,
                stderr=subprocess.STDOUT,
                pass_fds=(ends.reply, ends.lifeline),
                start_new_session=True,
                env={**environment, REPLY_FD: str(ends.reply), LIFELINE_FD: str(ends.lifeline)},
            )
        except OSError as error:
            raise ChildError(f"{module} cannot be started: {error}") from error
        self.pid = self._process.pid

    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def wait(self) -> int:
        """Wait for the end and return the exit status."""
        return self._process.wait()


class ForkedProcess:
    """A child that a template forked: watched by a descriptor of its own, its status collected by the template.

    Args:
        pid: of the child, which the template does not collect before ``reap``.
        reap: tells the template to collect the child, and returns its exit status.
    """

    def __init__(self, pid: int, reap: Callable[[], int]) -> None:
        self.pid = pid
        self._reap = reap
        self._descriptor = os.pidfd_open(pid)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return bool(self._poll.poll(0))

    def kill(self) -> None:
        """Kill the process."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for the end and return the exit status."""
        self._poll.poll()
        os.close(self._descriptor)
        return self._reap()


def kill_session(process: ChildProcess) -> None:
    """Kill a child and everything in its session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()  # a fork that has not yet reached its own session


def kill_marked(mark: str, *, but_of_session: int | None = None) -> None:
    """Kill what has left a child's session; the mark in its environment goes wherever its descendants go.

    Args:
        mark: value of the mark.
        but_of_session: session that is left alone; None for none.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if process.environ().get(MARK) == mark and os.getsid(process.pid) != but_of_session:
                process.kill()
