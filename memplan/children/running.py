"""The parent side of one child process: start it, talk to it, watch it, and say how it ended."""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import selectors
import signal
import time
from collections import deque
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from memplan.children.interrupts import HeldInterrupts, interrupts_held_back
from memplan.children.processes import ForkedProcess, StartedProcess, kill_marked, kill_session
from memplan.children.protocol import HEADER, MARK, PipeEnds
from memplan.children.template import child_environment
from memplan.units import KIB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan.children.processes import ChildProcess
    from memplan.children.template import Template

LOG_TAIL_BYTES = 64 * KIB
_QUOTED_CHARACTERS = 200
_TICK_S = 0.05
_STACK_DUMP_S = 1.0
_AFTER_HANG_UP_S = 0.005
_LAST_READ_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildEnding:
    """How a child process ended.

    Args:
        messages: what it answered, in order.
        return_code: exit status; negative is the signal that ended it.
        stop_reason: why the parent stopped it; None where it ended by itself.
        log_tail: the end of its standard output and error, together.
        duration_s: wall time from start to end.
        lost_its_template: whether it ended because the process it was forked from did, through no fault of its own.
    """

    messages: tuple[Any, ...]
    return_code: int
    stop_reason: str | None
    log_tail: str
    duration_s: float
    lost_its_template: bool = False

    @property
    def last_line(self) -> str | None:
        """The last line it printed, where most interpreters and libraries say why they give up; long ones are cut."""
        lines = [line.strip() for line in self.log_tail.splitlines() if line.strip()]
        return lines[-1][:_QUOTED_CHARACTERS] if lines else None


def run_child(
    module: str,
    request: object,
    *,
    on_message: Callable[[Any], None] | None = None,
    watch: Callable[[int, float], str | None] | None = None,
    environment: Mapping[str, str] | None = None,
    template: Template | None = None,
) -> ChildEnding:
    """Run ``python -m module`` on one request until it ends or ``watch`` stops it.

    Args:
        module: importable module whose main calls :func:`memplan.children.serve`.
        request: picklable value handed to the child.
        on_message: called with each message as it arrives.
        watch: called about twenty times a second with the child's pid and its age in seconds; a text stops the child
            and becomes ``stop_reason``, after the child has been asked to print where it is.
        environment: variables set on top of this process's own, of which rank, world size and the like are left out.
        template: forks the child, where it can, in place of a start from nothing.

    Raises:
        ChildError: the process could not be started.
    """
    started = time.monotonic()
    payload, mark = pickle.dumps(request), secrets.token_hex(8)
    process, ends = _start(module, child_environment(environment), mark, template)
    with interrupts_held_back() as interrupts:  # one that came while the child is being ended would leave it behind
        conversation = _Conversation(process, ends, payload, on_message)
        try:
            stop_reason = conversation.attend(
                lambda: watch(process.pid, time.monotonic() - started) if watch else None, interrupts
            )
        finally:
            return_code = conversation.end()
            kill_marked(mark)
            if template is not None:
                template.clear_up()
    return ChildEnding(
        messages=tuple(conversation.messages),
        return_code=return_code,
        stop_reason=stop_reason,
        log_tail=conversation.log_tail(),
        duration_s=time.monotonic() - started,
        lost_its_template=isinstance(process, ForkedProcess) and template is not None and not template.is_running,
    )


def stop_after(limit_s: float, reason: str) -> Callable[[int, float], str | None]:
    """Return a watch for :func:`run_child` that allows a child so many seconds, which it adds to the reason."""
    return lambda _pid, age_s: f"{reason} within {limit_s:.0f} s" if age_s > limit_s else None


def _start(
    module: str, environment: Mapping[str, str], mark: str, template: Template | None
) -> tuple[ChildProcess, PipeEnds]:
    parents, childs = PipeEnds.pairs()
    try:
        forked = template.fork(module, environment, mark, childs) if template else None
        return forked or StartedProcess(module, {**environment, MARK: mark}, childs), parents
    except BaseException:
        parents.close()
        raise
    finally:
        childs.close()


class _Conversation:
    """The parent's side of one child: its pipes, its messages so far and the tail of its output."""

    def __init__(
        self, process: ChildProcess, ends: PipeEnds, payload: bytes, on_message: Callable[[Any], None] | None
    ) -> None:
        self.messages: list[Any] = []
        self._process = process
        self._lifeline_fd = ends.lifeline
        self._on_message = on_message
        self._unsent = memoryview(HEADER.pack(len(payload)) + payload)
        self._pending = bytearray()
        self._log: deque[bytes] = deque()
        self._log_bytes = 0
        self._selector = selectors.DefaultSelector()
        self._reply = os.fdopen(ends.reply, "rb", buffering=0)
        self._output = os.fdopen(ends.output, "rb", buffering=0)
        self._request = os.fdopen(ends.request, "wb", buffering=0)
        self._listen(self._reply, selectors.EVENT_READ, self._read_reply)
        self._listen(self._output, selectors.EVENT_READ, self._read_output)
        self._listen(self._request, selectors.EVENT_WRITE, self._write_request)

    def attend(self, watch: Callable[[], str | None], interrupts: HeldInterrupts) -> str | None:
        """Talk until the child has ended; return why it was stopped, or None.

        Args:
            watch: returns why the child is to be stopped, or None.
            interrupts: are delivered about twenty times a second.
        """
        while not self._process.has_ended():
            self._talk()
            interrupts.deliver()
            reason = watch()
            if reason is not None:
                self._ask_for_stacks(interrupts)
                return reason
        self._read_what_is_left()
        return None

    def end(self) -> int:
        """Kill the child's whole session, release the pipes and return the exit status."""
        kill_session(self._process)
        return_code = self._process.wait()
        self._on_message = None  # the caller may be on its way out with an exception
        self._read_what_is_left()
        self._selector.close()
        os.close(self._lifeline_fd)
        for stream in (self._reply, self._output, self._request):
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        return return_code

    def log_tail(self) -> str:
        return b"".join(self._log)[-LOG_TAIL_BYTES:].decode(errors="replace")

    def _ask_for_stacks(self, interrupts: HeldInterrupts) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGUSR1)
        deadline = time.monotonic() + _STACK_DUMP_S
        while time.monotonic() < deadline and not self._process.has_ended():
            self._talk()
            interrupts.deliver()

    def _talk(self) -> None:
        """Serve the pipes for a moment, or until the child hangs up, however much there is to read."""
        deadline = time.monotonic() + _TICK_S
        while not self._has_hung_up() and (remaining_s := deadline - time.monotonic()) > 0:
            for key, _ in self._selector.select(remaining_s):
                key.data()
        if self._has_hung_up():
            time.sleep(_AFTER_HANG_UP_S)

    def _has_hung_up(self) -> bool:
        listened = self._selector.get_map()
        return self._reply not in listened and self._output not in listened

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
        while len(self._pending) >= HEADER.size:
            (length,) = HEADER.unpack_from(self._pending)
            if len(self._pending) < HEADER.size + length:
                return
            message = pickle.loads(self._pending[HEADER.size : HEADER.size + length])
            del self._pending[: HEADER.size + length]
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
