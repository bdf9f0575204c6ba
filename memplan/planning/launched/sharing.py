"""One plan for all processes that a launcher started: rank 0 makes it, the others wait for it and read it.

They exchange files in the store, before any process group exists. A file's name depends on the launcher's name for the
run and on how many plans a process has requested. Some launchers give every run the same name, so an answer that an
earlier run left must not be used: it counts only if it was given after this process started, or if the rank 0 that gave
it still runs. A process on this machine is looked up; one on another is known only by its heartbeat, the announcement
that it renews.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from typing import TYPE_CHECKING

import psutil

from memplan.errors import LaunchError, MemplanError, OutputError
from memplan.planning.launched.plan_exchange import Answer, Failure, PlanExchange
from memplan.process_identity import this_process
from memplan.progress import Notice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from memplan.launchers import Launch
    from memplan.plans import Plan
    from memplan.process_identity import ProcessIdentity
    from memplan.progress import Observer

_WAIT_S = 1800.0  # for rank 0 to request a plan; as long as torch.distributed waits for a rank by default
_POLL_S = 0.1
_RENEWAL_S = 5.0
_SILENCE_S = 60.0  # without a heartbeat, after which a rank 0 on another machine counts as ended
_AFTERWARDS_S = 600.0  # of heartbeats after the answer, for ranks that start late
_ACKNOWLEDGEMENT_S = 3.0
_CLOCK_SKEW_S = 2.0
_PLAN_NUMBERS = itertools.count(1)


def shared(make: Callable[[], Plan], store: Path, observer: Observer, launch: Launch | None) -> Plan:
    """Make a plan, or get it from rank 0 where this process was started together with others.

    Every rank must request the same plans in the same order.

    Raises:
        MemplanError: there is no plan; the same error in all ranks.
        LaunchError: rank 0 never asked for a plan, or ended without an answer.
    """
    if launch is None:
        return make()
    exchange = PlanExchange(store, launch, next(_PLAN_NUMBERS))
    return make_for_all(make, exchange) if launch.rank == 0 else wait_for(exchange, launch, observer)


def make_for_all(make: Callable[[], Plan], exchange: PlanExchange) -> Plan:
    """In rank 0: make the plan and publish it to the others, or the reason why there is none."""
    me = this_process()
    exchange.announce(me)
    with _Heartbeat(exchange):
        try:
            plan = make()
        except BaseException as error:
            with contextlib.suppress(OutputError):  # the error on its way out is the one to be seen
                exchange.publish(Answer(by=me, announced_at=time.time(), plan=None, failure=_failure_of(error)))
                _wait_for_acknowledgements(exchange)
            raise
        exchange.publish(Answer(by=me, announced_at=time.time(), plan=plan, failure=None))
    return plan


def wait_for(exchange: PlanExchange, launch: Launch, observer: Observer, *, wait_s: float = _WAIT_S) -> Plan:
    """In every other rank: wait for the answer of rank 0.

    Args:
        exchange: the files of the plan.
        launch: rank and world size of this process.
        observer: called when this process starts to wait.
        wait_s: how long rank 0 may take to begin; once it has, there is no limit while it runs.

    Raises:
        MemplanError: rank 0 made no plan; the same error as there.
        LaunchError: rank 0 never asked for a plan, or ended without an answer.
    """
    observer(Notice(text=f"rank {launch.rank} waits for the plan that rank 0 makes"))
    me, deadline, watch = this_process(), time.monotonic() + wait_s, _Watch(exchange)
    while True:
        answer = exchange.answer()
        if answer is not None and (_is_later(answer.announced_at, me, answer.by) or watch.sees(answer.by)):
            exchange.acknowledge(launch.rank)
            return _plan_of(answer)
        begun = exchange.announcement()
        if begun is not None and watch.sees(begun.by):
            deadline = time.monotonic() + wait_s
        elif begun is not None and (watch.has_seen(begun.by) or _is_later(begun.announced_at, me, begun.by)):
            if exchange.answer() is None:
                raise LaunchError("rank 0 ended while it was making the plan", hint="see its own output")
        elif time.monotonic() > deadline:
            raise LaunchError(
                f"rank 0 did not ask for a plan within {wait_s:.0f} s",
                where=str(exchange.announcement_path.parent),
                hint="every rank must call memplan.plan, with a store that all of them see",
            )
        time.sleep(_POLL_S)


def _wait_for_acknowledgements(exchange: PlanExchange) -> None:
    """Wait a little before this rank fails: some launchers then end the others, who would not say why."""
    deadline = time.monotonic() + _ACKNOWLEDGEMENT_S
    while not exchange.is_acknowledged_by_all and time.monotonic() < deadline:
        time.sleep(_POLL_S)


class _Watch:
    """Whether the process that makes the plan still runs."""

    def __init__(self, exchange: PlanExchange) -> None:
        self._exchange = exchange
        self._seen: set[ProcessIdentity] = set()
        self._renewed_at = exchange.renewed_at()
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
        now, renewed_at = time.monotonic(), self._exchange.renewed_at()
        if renewed_at != self._renewed_at:
            self._renewed_at, self._renewal_seen_at = renewed_at, now
        return self._renewal_seen_at is not None and now - self._renewal_seen_at < _SILENCE_S


def _is_later(moment: float, me: ProcessIdentity, other: ProcessIdentity) -> bool:
    """Whether a moment in another process is after this one's start, as far as the clocks of two hosts agree."""
    skew_s = 0.0 if me.host == other.host else _CLOCK_SKEW_S
    return moment > psutil.Process(me.pid).create_time() + skew_s


def _plan_of(answer: Answer) -> Plan:
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


class _Heartbeat(threading.Thread):
    """Renews the announcement while the plan is made, and for a while afterwards as long as this process runs."""

    def __init__(self, exchange: PlanExchange) -> None:
        super().__init__(name="memplan: heartbeat", daemon=True)
        self._exchange = exchange
        self._ends_at = float("inf")

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_error: object) -> None:
        self._ends_at = time.monotonic() + _AFTERWARDS_S

    def run(self) -> None:
        """Renew the announcement until the thread is stopped."""
        while time.monotonic() < self._ends_at:
            time.sleep(_RENEWAL_S)
            self._exchange.renew()
