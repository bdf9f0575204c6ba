"""Children in milliseconds: a template process loads a module's imports once and forks every child from there.

Every child is still a process of its own, with its own memory, limits, session and output. What it shares with the
template are pages of imported code, mapped into it as they were into the template, so that its resident set is that of
a process that has just imported the same (see :mod:`memplan.children.file_pages`). A template runs no user code, but
what installed packages do when they are imported, and touches no device.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Self

from memplan.children.interrupts import interrupts_held_back
from memplan.children.processes import ForkedProcess, kill_marked
from memplan.children.protocol import IMPORTS, MARK, PACKET_BYTES, READY, REAP, TEMPLATE_FD, PipeEnds
from memplan.launchers import without_launch_variables

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from types import TracebackType

_READY_WITHIN_S = 120.0
_FORKED_WITHIN_S = 20.0
_KILLED = -9


class Template:
    """Forks children of one module; started when the first is wanted, or before, and replaced when it has died.

    Used as a context manager, or closed, so that the process does not stay until the caller's own ends. A template
    that cannot do its work (an old kernel, an import that fails) says so once, and children are started afresh from
    then on; see :func:`memplan.children.run_child`.

    Args:
        module: importable module whose main calls ``serve(handle, preload=...)``.
        imports: further modules to load, which its forks would all load: of installed packages.

    Its forks may do another module's work, where that needs much the same imports.
    """

    def __init__(self, module: str, imports: Collection[str] = ()) -> None:
        self.module = module
        self._imports = tuple(imports)
        self._running: _Running | None = None
        self._is_usable = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the template's process."""
        if self._running is not None:
            self._running.end()
            self._running = None

    def give_up(self) -> None:
        """End the template's process and make no other: its forks turned out to be useless."""
        self.close()
        self._is_usable = False

    @property
    def is_running(self) -> bool:
        """Whether the process is there and has not ended."""
        return self._running is not None and self._running.process.poll() is None

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start loading the module's imports, without waiting, for children that will be wanted soon.

        Args:
            environment: variables of the children, as :func:`memplan.children.run_child` takes them.
        """
        if self._running is None and self._is_usable:
            with contextlib.suppress(OSError):  # then the first child meets the same, and is started afresh
                self._start(child_environment(environment))

    def fork(self, module: str, environment: Mapping[str, str], mark: str, ends: PipeEnds) -> ForkedProcess | None:
        """Fork a child; None where that cannot be done and the child is to be started afresh.

        Args:
            module: whose work the child does; one that is not the template's own has a function ``answer``, which takes
                what ``serve`` gives a handle.
            environment: of the child; one that differs from the template's makes a new template.
            mark: by which the child's descendants are known.
            ends: the child's ends of its pipes.
        """
        if self._running is not None and (not self.is_running or self._running.environment != environment):
            self.close()
        try:
            if self._running is None and self._is_usable:
                self._start(environment)
            order = mark if module == self.module else f"{mark} {module}"
            return self._running.fork(order, ends) if self._running else None
        except OSError:  # it died, hung or could not be started
            self.give_up()
            return None
        except BaseException:  # interrupted in the middle of a sentence
            self.close()
            raise

    def _start(self, environment: Mapping[str, str]) -> None:
        with interrupts_held_back():  # until it is known what is to be ended
            self._running = _Running(self.module, environment, self._imports)

    def clear_up(self) -> None:
        """Kill what forks of user code have left behind under the template's own mark."""
        if self._running is not None:
            kill_marked(self._running.mark, but_of_session=self._running.process.pid)


def child_environment(environment: Mapping[str, str] | None) -> dict[str, str]:
    """Return the whole environment of a child: this process's, but for rank, world size and the like, and its own."""
    return {**without_launch_variables(os.environ), "PYTHONUNBUFFERED": "1", **(environment or {})}


class _Running:
    """A template process that has said it is ready."""

    def __init__(self, module: str, environment: Mapping[str, str], imports: tuple[str, ...]) -> None:
        self.environment = dict(environment)
        self.mark = secrets.token_hex(8)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own = {MARK: self.mark, TEMPLATE_FD: str(theirs.fileno()), IMPORTS: " ".join(imports)}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", module],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={**environment, **own},
            )
        self._is_ready = False

    def fork(self, order: str, ends: PipeEnds) -> ForkedProcess:
        if not self._is_ready:
            self._hear(_READY_WITHIN_S, READY)
            self._is_ready = True
        socket.send_fds(self._control, [order.encode()], [ends.request, ends.output, ends.reply, ends.lifeline])
        return ForkedProcess(int(self._hear(_FORKED_WITHIN_S)), self._reap)

    def end(self) -> None:
        self._control.close()
        self.process.kill()
        self.process.wait()

    def _reap(self) -> int:
        try:
            self._control.send(REAP)
            return int(self._hear(_FORKED_WITHIN_S))
        except OSError:  # the template died, and the kernel killed its child with it
            return _KILLED

    def _hear(self, within_s: float, expected: bytes | None = None) -> bytes:
        """Return the template's next word.

        Raises:
            OSError: it is gone, silent, or says something else than expected.
        """
        self._control.settimeout(within_s)
        said = self._control.recv(PACKET_BYTES)
        if not said or expected not in (None, said):
            raise ConnectionError(f"the template of {os.getpid()} said {said!r}")
        return said
