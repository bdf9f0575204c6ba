"""One plan for all processes that a launcher started: rank 0 makes it, the others wait for it and read it.

They meet in files of the store, before any process group exists. Files of one run are named by what the launcher calls
it and by how many plans a process has asked for. Some launchers call each run the same, so an answer left by an earlier
run must not be taken: it counts only if it was given after this process started, or if the rank 0 that gave it still
runs. On this machine a process is looked up; of one elsewhere only the sign of life that it renews can be seen.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from typing import TYPE_CHECKING

from memplan.errors import LaunchError, MemplanError, OutputError
from memplan.planning.launched.meeting import Answer, Failure, MeetingPoint
from memplan.process_identity import this_process
from memplan.progress import Notice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from memplan.launchers import Launch
    from memplan.plans import Plan
    from memplan.process_identity import ProcessIdentity
    from memplan.progress import Observer

_WAIT_S = 1800.0  # for rank 0 to ask for a plan at all, as long as torch.distributed waits for a rank by default
_POLL_S = 0.1
_RENEWAL_S = 5.0
_SILENCE_S = 60.0  # without a renewed sign, after which a rank 0 on another machine is taken to be gone
_AFTERWARDS_S = 600.0  # for which rank 0 gives signs of life after its answer, for ranks that start late
_FAREWELL_S = 3.0
_CLOCK_SKEW_S = 2.0
_QUESTIONS = itertools.count(1)


def shared(make: Callable[[], Plan], store: Path, observer: Observer, launch: Launch | None) -> Plan:
    """Make a plan, or get it from rank 0 where this process was started together with others.

    Every rank must ask for the same plans in the same order.

    Raises:
        MemplanError: there is no plan; the same error in all ranks.
        LaunchError: rank 0 never asked for a plan, or ended without an answer.
    """
    if launch is None:
        return make()
    meeting = MeetingPoint(store, launch, next(_QUESTIONS))
    return make_for_all(make, meeting) if launch.rank == 0 else wait_for(meeting, launch, observer)


def make_for_all(make: Callable[[], Plan], meeting: MeetingPoint) -> Plan:
    """In rank 0: make the plan and publish it to the others, or the reason why there is none."""
    me = this_process()
    meeting.announce(me)
    with _SignsOfLife(meeting):
        try:
            plan = make()
        except BaseException as error:
            with contextlib.suppress(OutputError):  # the error on its way out is the one to be seen
                meeting.give(Answer(by=me, given_at=time.time(), plan=None, failure=_failure_of(error)))
                _let_all_take_it(meeting)
            raise
        meeting.give(Answer(by=me, given_at=time.time(), plan=plan, failure=None))
    return plan


def wait_for(meeting: MeetingPoint, launch: Launch, observer: Observer, *, wait_s: float = _WAIT_S) -> Plan:
    """In every other rank: wait for the answer of rank 0.

    Args:
        meeting: where to meet.
        launch: this process's place.
        observer: called when this process starts to wait.
        wait_s: how long rank 0 may take to begin; once it has, as long as it lives.

    Raises:
        MemplanError: rank 0 made no plan; the same error as there.
        LaunchError: rank 0 never asked for a plan, or ended without an answer.
    """
    observer(Notice(text=f"rank {launch.rank} waits for the plan that rank 0 makes"))
    me, deadline, watch = this_process(), time.monotonic() + wait_s, _Watch(meeting)
    while True:
        answer = meeting.answer()
        if answer is not None and (_is_later(answer.given_at, me, answer.by) or watch.sees(answer.by)):
            meeting.take(launch.rank)
            return _taken(answer)
        sign = meeting.sign()
        if sign is not None and watch.sees(sign.by):
            deadline = time.monotonic() + wait_s
        elif sign is not None and (watch.has_seen(sign.by) or _is_later(sign.given_at, me, sign.by)):
            if meeting.answer() is None:
                raise LaunchError("rank 0 ended while it was making the plan", hint="see its own output")
        elif time.monotonic() > deadline:
            raise LaunchError(
                f"rank 0 did not ask for a plan within {wait_s:.0f} s",
                where=str(meeting.sign_path.parent),
                hint="every rank must call memplan.plan, with a store that all of them see",
            )
        time.sleep(_POLL_S)


def _let_all_take_it(meeting: MeetingPoint) -> None:
    """Wait a little before this rank fails: some launchers then end the others, who would not say why."""
    deadline = time.monotonic() + _FAREWELL_S
    while not meeting.is_taken_by_all and time.monotonic() < deadline:
        time.sleep(_POLL_S)


class _Watch:
    """Sees whether the process that makes the plan runs."""

    def __init__(self, meeting: MeetingPoint) -> None:
        self._meeting = meeting
        self._seen: set[ProcessIdentity] = set()
        self._renewed_at = meeting.renewed_at()
        self._renewal_seen_at: float | None = None

    def sees(self, process: ProcessIdentity) -> bool:
        is_running = process.is_running()
        if is_running is None:
            is_running = self._is_renewed()
        if is_running:
            self._seen.add(process)
        return is_running

    def has_seen(self, process: ProcessIdentity) -> bool:
        return process in self._seen

    def _is_renewed(self) -> bool:
        now, renewed_at = time.monotonic(), self._meeting.renewed_at()
        if renewed_at != self._renewed_at:
            self._renewed_at, self._renewal_seen_at = renewed_at, now
        return self._renewal_seen_at is not None and now - self._renewal_seen_at < _SILENCE_S


def _is_later(moment: float, me: ProcessIdentity, other: ProcessIdentity) -> bool:
    """Return whether a moment in another process is after this one's start, as far as the clocks of two hosts agree."""
    skew_s = 0.0 if me.host == other.host else _CLOCK_SKEW_S
    return moment > me.started_at + skew_s


def _taken(answer: Answer) -> Plan:
    if answer.plan is not None:
        return answer.plan
    failure = answer.failure
    if failure is None:
        raise LaunchError("rank 0 gave an empty answer")
    kinds = {kind.__name__: kind for kind in _kinds(MemplanError)}
    kind = kinds.get(failure.kind, LaunchError)
    raise kind(failure.problem, where=failure.where, hint=failure.hint, detail=failure.detail)


def _kinds(kind: type[MemplanError]) -> Iterator[type[MemplanError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)


def _failure_of(error: BaseException) -> Failure:
    if isinstance(error, MemplanError):
        return Failure(
            kind=type(error).__name__,
            problem=error.problem,
            where=error.where,
            hint=error.hint,
            detail=error.detail,
        )
    said = f": {error}" if str(error) else ""
    problem = f"rank 0 came to no plan: {type(error).__name__}{said}"
    return Failure(kind=LaunchError.__name__, problem=problem, where=None, hint=None, detail=None)


class _SignsOfLife(threading.Thread):
    """Renews the sign while the plan is made, and for a while afterwards as long as this process runs."""

    def __init__(self, meeting: MeetingPoint) -> None:
        super().__init__(name="memplan: signs of life", daemon=True)
        self._meeting = meeting
        self._ends_at = float("inf")

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_error: object) -> None:
        self._ends_at = time.monotonic() + _AFTERWARDS_S

    def run(self) -> None:
        """Renew the sign until told to stop."""
        while time.monotonic() < self._ends_at:
            time.sleep(_RENEWAL_S)
            self._meeting.renew()
