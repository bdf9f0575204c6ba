"""The one gateway to child processes: start one, hand it a request, watch it, and say how it ended.

A child is ``python -m <module>`` in a session of its own. It receives one request and answers with any number of
messages over a private pipe, so nothing that user code prints can be mistaken for an answer. Its output is kept as a
bounded tail. A child never outlives its parent, and whatever it started goes with it.

Linux and other POSIX systems only. Messages are pickled values of memplan's own plain types.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import pickle
import selectors
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from memplan.errors import ChildError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LOG_TAIL_BYTES = 64 * 1024
_TICK_S = 0.05
_STACK_DUMP_S = 1.0
_REPLY_FD = "MEMPLAN_REPLY_FD"
_HEADER = struct.Struct("!Q")
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildEnding:
    """How a child process ended.

    Args:
        messages: what it answered, in order.
        return_code: exit status; negative is the signal that ended it.
        stop_reason: why the parent stopped it; None where it ended by itself.
        log_tail: the end of its standard output and error, together.
        duration_s: wall time from start to end.
    """

    messages: tuple[Any, ...]
    return_code: int
    stop_reason: str | None
    log_tail: str
    duration_s: float


def run_child(
    module: str,
    request: object,
    *,
    on_message: Callable[[Any], None] | None = None,
    watch: Callable[[int, float], str | None] | None = None,
    environment: Mapping[str, str] | None = None,
) -> ChildEnding:
    """Run ``python -m module`` on one request until it ends or ``watch`` stops it.

    Args:
        module: importable module whose main calls :func:`serve`.
        request: picklable value handed to the child.
        on_message: called with each message as it arrives.
        watch: called about twenty times a second with the child's pid and its age in seconds; a text stops the child
            and becomes ``stop_reason``, after the child has been asked to print where it is.
        environment: variables set on top of this process's own.

    Raises:
        ChildError: the process could not be started.
    """
    started = time.monotonic()
    reply_read, reply_write = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(reply_write,),
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {}), _REPLY_FD: str(reply_write)},
        )
    except OSError as error:
        os.close(reply_read)
        raise ChildError(f"{module} cannot be started: {error}") from error
    finally:
        os.close(reply_write)
    conversation = _Conversation(process, reply_read, on_message)
    try:
        conversation.send(request)
        stop_reason = conversation.attend(lambda: watch(process.pid, time.monotonic() - started) if watch else None)
    finally:
        conversation.end()
    return ChildEnding(
        messages=tuple(conversation.messages),
        return_code=process.returncode,
        stop_reason=stop_reason,
        log_tail=conversation.log_tail(),
        duration_s=time.monotonic() - started,
    )


class _Conversation:
    """The parent's side of one child: its pipes, its messages so far and the tail of its output."""

    def __init__(self, process: subprocess.Popen[bytes], reply_fd: int, on_message: Callable[[Any], None] | None):
        self.messages: list[Any] = []
        self._process = process
        self._on_message = on_message
        self._reply = os.fdopen(reply_fd, "rb", buffering=0)
        self._pending = bytearray()
        self._log: deque[bytes] = deque()
        self._log_bytes = 0
        self._selector = selectors.DefaultSelector()
        self._output = _opened(process.stdout)
        for stream, read in ((self._reply, self._read_reply), (self._output, self._read_output)):
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, read)

    def send(self, request: object) -> None:
        payload = pickle.dumps(request)
        stdin = _opened(self._process.stdin)
        with contextlib.suppress(BrokenPipeError):  # a child that died at once is reported by how it ended
            stdin.write(_HEADER.pack(len(payload)) + payload)
            stdin.flush()

    def attend(self, watch: Callable[[], str | None]) -> str | None:
        """Read until the child has ended; return why it was stopped, or None."""
        while self._process.poll() is None:
            self._pump(_TICK_S)
            reason = watch()
            if reason is not None:
                self._ask_for_stacks()
                return reason
        self._pump(0)
        return None

    def end(self) -> None:
        """Kill the child's whole session and release the pipes."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._pump(0)
        self._selector.close()
        for stream in (self._reply, self._output, _opened(self._process.stdin)):
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def log_tail(self) -> str:
        return b"".join(self._log)[-LOG_TAIL_BYTES:].decode(errors="replace")

    def _ask_for_stacks(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGUSR1)
        deadline = time.monotonic() + _STACK_DUMP_S
        while time.monotonic() < deadline and self._process.poll() is None:
            self._pump(_TICK_S)

    def _pump(self, timeout_s: float) -> None:
        while events := self._selector.select(timeout_s):
            timeout_s = 0
            progress = [key.data() for key, _ in events]
            if not any(progress):
                return

    def _read_reply(self) -> bool:
        chunk = self._reply.read(1 << 20)
        if not chunk:
            return self._forget(self._reply, chunk)
        self._pending += chunk
        while len(self._pending) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._pending)
            if len(self._pending) < _HEADER.size + length:
                break
            message = pickle.loads(self._pending[_HEADER.size : _HEADER.size + length])
            del self._pending[: _HEADER.size + length]
            self.messages.append(message)
            if self._on_message is not None:
                self._on_message(message)
        return True

    def _read_output(self) -> bool:
        chunk = self._output.read(1 << 16)
        if not chunk:
            return self._forget(self._output, chunk)
        self._log.append(chunk)
        self._log_bytes += len(chunk)
        while self._log_bytes - len(self._log[0]) > LOG_TAIL_BYTES:
            self._log_bytes -= len(self._log.popleft())
        return True

    def _forget(self, stream: IO[bytes], chunk: bytes | None) -> bool:
        if chunk == b"":  # end of file; None only means nothing to read yet
            self._selector.unregister(stream)
        return False


def _opened(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise ChildError("the child process has no pipes")
    return stream


def serve(handle: Callable[[Any, Callable[[object], None]], None]) -> None:
    """In the child: receive the request, call ``handle(request, reply)`` and exit.

    ``reply`` sends one message to the parent. Standard input is empty for user code. SIGUSR1 prints the stacks of all
    threads. The process ends when its parent does.
    """
    _die_with_parent()
    lifeline = os.fdopen(os.dup(0), "rb", buffering=0)
    replies = os.fdopen(int(os.environ.pop(_REPLY_FD)), "wb", buffering=0)
    os.set_inheritable(replies.fileno(), False)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    request = pickle.loads(_read_exactly(lifeline, _HEADER.unpack(_read_exactly(lifeline, _HEADER.size))[0]))
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a descriptor, not a file's content
        os.dup2(nothing.fileno(), 0)
    threading.Thread(target=_exit_at_end_of, args=(lifeline,), daemon=True).start()
    sending = threading.Lock()

    def reply(message: object) -> None:
        payload = pickle.dumps(message)
        with sending:
            remaining = memoryview(_HEADER.pack(len(payload)) + payload)
            while remaining:
                remaining = remaining[replies.write(remaining) :]

    handle(request, reply)


def _read_exactly(stream: IO[bytes], count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        chunk = stream.read(count - len(received))
        if not chunk:
            raise SystemExit("the parent process ended before it sent its request")
        received += chunk
    return bytes(received)


def _exit_at_end_of(lifeline: IO[bytes]) -> None:
    while lifeline.read(1 << 16):
        pass
    os.killpg(0, signal.SIGKILL)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
