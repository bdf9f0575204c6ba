"""Work that forks of a child do beside it, from the state that the child is in: each in a process of its own."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan.children.serving import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable

_OWN_THREADS = Path("/proc/self/task")
_LOWER_PRIORITY = 10
_CHUNK_BYTES = 1 << 20


class Forks:
    """Forks of this process at work, which end with it and print where it does."""

    def __init__(self) -> None:
        self._running: list[_Fork] = []

    def start(self, work: Callable[[], object], *, yields: bool = True) -> None:
        """Have a fork do some work; nothing is done where there is no room for one, or threads that it would lack.

        Args:
            work: what it calls.
            yields: whether it leaves this process the processor.
        """
        if len(list(_OWN_THREADS.iterdir())) > 1:
            return
        reading, writing = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(reading)
            os.close(writing)
            return
        if not pid:
            with contextlib.suppress(BaseException):
                die_with_parent()
                os.nice(_LOWER_PRIORITY if yields else 0)
                payload = pickle.dumps(work())
                with open(writing, "wb") as pipe:  # noqa: PTH123 - a descriptor, not a file's content
                    pipe.write(payload)
            os._exit(0)
        os.close(writing)
        self._running.append(_Fork(pid=pid, reading=reading))

    def results(self, *, within_s: float) -> list[Any]:
        """Wait for all, so long at most; return what each work's call returned, in order.

        Those that raised or died are left out, and so are those that are not done in time, which are ended.
        """
        deadline = time.monotonic() + within_s
        payloads = [each.payload(deadline) for each in self._running]
        self._running = []
        return [pickle.loads(each) for each in payloads if each]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fork:
    pid: int
    reading: int

    def payload(self, deadline: float) -> bytes:
        """Return what the fork has written once it has ended; nothing where it has not by then, or not in order."""
        chunks: list[bytes] = []
        ready = select.poll()  # takes descriptors of any number, where ``select`` takes 1,024
        ready.register(self.reading, select.POLLIN)
        while is_done_in_time := bool(ready.poll(max(deadline - time.monotonic(), 0) * 1000)):
            chunks.append(os.read(self.reading, _CHUNK_BYTES))
            if not chunks[-1]:
                break
        os.close(self.reading)
        if not is_done_in_time:
            os.kill(self.pid, signal.SIGKILL)
        status = os.waitpid(self.pid, 0)[1]
        return b"" if status else b"".join(chunks)
