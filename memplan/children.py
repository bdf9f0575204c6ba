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
import secrets
import selectors
import signal
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import psutil

from memplan.errors import ChildError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LOG_TAIL_BYTES = 64 * 1024
_TICK_S = 0.05
_STACK_DUMP_S = 1.0
_AFTER_HANG_UP_S = 0.005
_LAST_READ_S = 1.0
_REPLY_FD = "MEMPLAN_REPLY_FD"
_LIFELINE_FD = "MEMPLAN_LIFELINE_FD"
_MARK = "MEMPLAN_CHILD"
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
    payload, mark = pickle.dumps(request), secrets.token_hex(8)
    child = _start(module, {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {}), _MARK: mark})
    conversation = _Conversation(child, payload, on_message)
    try:
        pid = child.process.pid
        stop_reason = conversation.attend(lambda: watch(pid, time.monotonic() - started) if watch else None)
    finally:
        conversation.end()
        _kill_marked(mark)
    return ChildEnding(
        messages=tuple(conversation.messages),
        return_code=child.process.returncode,
        stop_reason=stop_reason,
        log_tail=conversation.log_tail(),
        duration_s=time.monotonic() - started,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Child:
    """A child that was started: its process, the pipe it answers on, and the one whose closing ends it."""

    process: subprocess.Popen[bytes]
    reply_fd: int
    lifeline_fd: int


def _start(module: str, environment: Mapping[str, str]) -> _Child:
    reply_read, reply_write = os.pipe()
    lifeline_read, lifeline_write = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(reply_write, lifeline_read),
            start_new_session=True,
            env={**environment, _REPLY_FD: str(reply_write), _LIFELINE_FD: str(lifeline_read)},
        )
    except OSError as error:
        os.close(reply_read)
        os.close(lifeline_write)
        raise ChildError(f"{module} cannot be started: {error}") from error
    finally:
        os.close(reply_write)
        os.close(lifeline_read)
    return _Child(process=process, reply_fd=reply_read, lifeline_fd=lifeline_write)


class _Conversation:
    """The parent's side of one child: its pipes, its messages so far and the tail of its output."""

    def __init__(self, child: _Child, payload: bytes, on_message: Callable[[Any], None] | None) -> None:
        self.messages: list[Any] = []
        self._process = child.process
        self._lifeline_fd = child.lifeline_fd
        self._on_message = on_message
        self._unsent = memoryview(_HEADER.pack(len(payload)) + payload)
        self._pending = bytearray()
        self._log: deque[bytes] = deque()
        self._log_bytes = 0
        self._selector = selectors.DefaultSelector()
        self._reply = os.fdopen(child.reply_fd, "rb", buffering=0)
        self._output = _opened(self._process.stdout)
        self._request = _opened(self._process.stdin)
        self._listen(self._reply, selectors.EVENT_READ, self._read_reply)
        self._listen(self._output, selectors.EVENT_READ, self._read_output)
        self._listen(self._request, selectors.EVENT_WRITE, self._write_request)

    def attend(self, watch: Callable[[], str | None]) -> str | None:
        """Talk until the child has ended; return why it was stopped, or None."""
        while self._process.poll() is None:
            self._talk(_TICK_S)
            reason = watch()
            if reason is not None:
                self._ask_for_stacks()
                return reason
        self._read_what_is_left()
        return None

    def end(self) -> None:
        """Kill the child's whole session and release the pipes."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._on_message = None  # the caller may be on its way out with an exception
        self._read_what_is_left()
        self._selector.close()
        os.close(self._lifeline_fd)
        for stream in (self._reply, self._output, self._request):
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def log_tail(self) -> str:
        return b"".join(self._log)[-LOG_TAIL_BYTES:].decode(errors="replace")

    def _ask_for_stacks(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGUSR1)
        deadline = time.monotonic() + _STACK_DUMP_S
        while time.monotonic() < deadline and self._process.poll() is None:
            self._talk(_TICK_S)

    def _talk(self, duration_s: float) -> None:
        """Serve the pipes for that long, or until the child hangs up, however much there is to read."""
        deadline = time.monotonic() + duration_s
        while not self._reply_ended() and (remaining_s := deadline - time.monotonic()) > 0:
            for key, _ in self._selector.select(remaining_s):
                key.data()
        if self._reply_ended():
            time.sleep(_AFTER_HANG_UP_S)

    def _reply_ended(self) -> bool:
        return self._reply not in self._selector.get_map()

    def _read_what_is_left(self) -> None:
        """Read until there is nothing more; not for long, because escaped processes may go on printing."""
        self._ignore(self._request)
        deadline = time.monotonic() + _LAST_READ_S
        while time.monotonic() < deadline and (events := self._selector.select(0)):
            for key, _ in events:
                key.data()

    def _write_request(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._request.fileno(), self._unsent) :]
        except BrokenPipeError:  # a child that died at once is reported by how it ended
            self._unsent = self._unsent[:0]
        if not self._unsent:
            self._ignore(self._request)

    def _read_reply(self) -> None:
        chunk = os.read(self._reply.fileno(), 1 << 20)
        if not chunk:
            self._ignore(self._reply)
        self._pending += chunk
        while len(self._pending) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._pending)
            if len(self._pending) < _HEADER.size + length:
                return
            message = pickle.loads(self._pending[_HEADER.size : _HEADER.size + length])
            del self._pending[: _HEADER.size + length]
            self.messages.append(message)
            if self._on_message is not None:
                self._on_message(message)

    def _read_output(self) -> None:
        chunk = os.read(self._output.fileno(), 1 << 16)
        if not chunk:
            self._ignore(self._output)
            return
        self._log.append(chunk)
        self._log_bytes += len(chunk)
        while self._log_bytes - len(self._log[0]) > LOG_TAIL_BYTES:
            self._log_bytes -= len(self._log.popleft())

    def _listen(self, stream: IO[bytes], event: int, serve_it: Callable[[], None]) -> None:
        os.set_blocking(stream.fileno(), False)
        self._selector.register(stream, event, serve_it)

    def _ignore(self, stream: IO[bytes]) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(stream)


def _kill_marked(mark: str) -> None:
    """Kill what has left the child's session; the mark in its environment goes wherever its descendants go."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(_MARK) == mark:
                process.kill()


def _opened(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise ChildError("the child process has no pipes")
    return stream


def serve(handle: Callable[[Any, Callable[[object], None]], None]) -> None:
    """In the child: receive the request, call ``handle(request, reply)`` and end the process.

    ``reply`` sends one message to the parent; in a process that user code forked off it does nothing. Standard input is
    empty for user code. SIGUSR1 prints the stacks of all threads. The process and all it started end when its parent
    does, and do not wait for threads or exit handlers of user code.
    """
    _die_with_parent()
    _post_guardian(int(os.environ.pop(_LIFELINE_FD)))
    replies = os.fdopen(int(os.environ.pop(_REPLY_FD)), "wb", buffering=0)
    os.set_inheritable(replies.fileno(), False)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    request = pickle.loads(_received(sys.stdin.buffer))
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a descriptor, not a file's content
        os.dup2(nothing.fileno(), 0)
    owner, sending = os.getpid(), threading.Lock()

    def reply(message: object) -> None:
        if os.getpid() != owner:
            return
        payload = pickle.dumps(message)
        with sending:
            remaining = memoryview(_HEADER.pack(len(payload)) + payload)
            while remaining:
                remaining = remaining[replies.write(remaining) :]

    _end_process(_status_of(lambda: handle(request, reply)))


def _status_of(work: Callable[[], None]) -> int:
    try:
        work()
    except SystemExit as request_to_exit:
        return request_to_exit.code if isinstance(request_to_exit.code, int) else 1
    except BaseException:  # noqa: BLE001 - the last line of defence of a process
        traceback.print_exc()
        return 1
    return 0


def _end_process(status: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # user code may have closed it
            stream.flush()
    os._exit(status)


def _received(stream: IO[bytes]) -> bytes:
    header = stream.read(_HEADER.size)
    payload = stream.read(_HEADER.unpack(header)[0]) if len(header) == _HEADER.size else b""
    if not payload:
        raise SystemExit("the parent process ended before it sent its request")
    return payload


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _post_guardian(lifeline: int) -> None:
    """Leave a tiny process behind that kills this session once the parent, and with it the lifeline, is gone.

    The kernel's own signal on the parent's death reaches the child alone, not the processes that it has started. Forked
    twice, so that user code that waits for its children does not find one it does not know.
    """
    intermediate = os.fork()
    if intermediate:
        os.close(lifeline)
        os.waitpid(intermediate, 0)
        return
    if os.fork():
        os._exit(0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2, int(os.environ[_REPLY_FD])):
        os.dup2(nothing, descriptor)
    while os.read(lifeline, 1 << 10):
        pass
    os.killpg(0, signal.SIGKILL)
