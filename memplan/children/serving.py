"""The child side: receive one request, answer it, end; or, as a template, fork a child for each order.

Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from typing import IO, TYPE_CHECKING, Any

from memplan.children.early_imports import import_early
from memplan.children.file_pages import map_pages, resident_file_pages
from memplan.children.protocol import HEADER, LIFELINE_FD, MARK, PACKET_BYTES, READY, REPLY_FD, TEMPLATE_FD, PipeEnds

if TYPE_CHECKING:
    from collections.abc import Callable

    Handle = Callable[[Any, Callable[[object], None]], None]

_PR_SET_PDEATHSIG = 1


def serve(
    handle: Handle,
    *,
    preload: Callable[[], None] = lambda: None,
    is_spoilt: Callable[[], bool] = lambda: False,
    before_forks: Callable[[], None] = lambda: None,
) -> None:
    """In the child: receive the request, call ``handle(request, reply)`` and end the process.

    ``reply`` sends one message to the parent; in a process that user code forked off it does nothing. Standard input is
    empty for user code. SIGUSR1 prints the stacks of all threads. The process and all it started end when its parent
    does, and do not wait for threads or exit handlers of user code.

    Args:
        handle: does the work.
        preload: imports what every child needs; called where this process is a template, and must start no thread that
            a fork would miss, nor touch a device.
        is_spoilt: says in a fork whether it lacks something; a template whose forks do loads nothing but that.
        before_forks: called in a template once all is imported.
    """
    die_with_parent()
    control = os.environ.get(TEMPLATE_FD)
    if control is not None:
        preload()
        import_early(is_spoilt)
        before_forks()
        del os.environ[TEMPLATE_FD]
        _fork_on_orders(socket.socket(fileno=int(control)), handle)
    else:
        _serve_one(handle, reply_fd=int(os.environ.pop(REPLY_FD)), lifeline_fd=int(os.environ.pop(LIFELINE_FD)))


def _serve_one(handle: Handle, *, reply_fd: int, lifeline_fd: int) -> None:
    _post_guardian(lifeline_fd, reply_fd)
    replies = os.fdopen(reply_fd, "wb", buffering=0)
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
            remaining = memoryview(HEADER.pack(len(payload)) + payload)
            while remaining:
                remaining = remaining[replies.write(remaining) :]

    _end_process(_status_of(lambda: handle(request, reply)))


def _fork_on_orders(control: socket.socket, handle: Handle) -> None:
    """Fork a child for every order, and collect it when told to; end when the owner is gone."""
    pages = resident_file_pages()
    if not map_pages(pages):
        raise OSError("this kernel cannot map a library's pages into a fork (MADV_POPULATE_READ)")
    control.send(READY)
    while True:
        order, descriptors, _, _ = socket.recv_fds(control, PACKET_BYTES, len(PipeEnds.__slots__))
        if not order:
            os._exit(0)
        mark, _, module = order.decode().partition(" ")
        pid = os.fork()
        if not pid:
            control.close()
            map_pages(pages)
            _become_child(mark, *descriptors)
            _serve_one(_handle_of(module) if module else handle, reply_fd=descriptors[2], lifeline_fd=descriptors[3])
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(str(pid).encode())
        control.recv(PACKET_BYTES)
        _, status = os.waitpid(pid, 0)
        control.send(str(os.waitstatus_to_exitcode(status)).encode())


def _handle_of(module: str) -> Handle:
    """Return what imports a module once there is a request, and has it answer."""
    return lambda request, reply: importlib.import_module(module).answer(request, reply)


def _become_child(mark: str, request_fd: int, output_fd: int, reply_fd: int, lifeline_fd: int) -> None:
    """Give a fork of the template what a started child begins with: session, streams, environment."""
    del reply_fd, lifeline_fd  # stay where they are
    os.setsid()
    die_with_parent()
    for descriptor, place in ((request_fd, 0), (output_fd, 1), (output_fd, 2)):
        os.dup2(descriptor, place)
    os.close(request_fd)
    os.close(output_fd)
    os.environ[MARK] = mark


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
    header = stream.read(HEADER.size)
    payload = stream.read(HEADER.unpack(header)[0]) if len(header) == HEADER.size else b""
    if not payload:
        raise SystemExit("the parent process ended before it sent its request")
    return payload


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that started or forked it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _post_guardian(lifeline: int, reply: int) -> None:
    """Start a tiny process that kills this session once the parent, and with it the lifeline, is gone.

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
    for descriptor in (0, 1, 2, reply):
        os.dup2(nothing, descriptor)
    while os.read(lifeline, 1 << 10):
        pass
    os.killpg(0, signal.SIGKILL)
