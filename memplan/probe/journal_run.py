"""One open run of the journal, which belongs to this process until it is closed."""

from __future__ import annotations

import contextlib
import pickle
from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self, get_args

from memplan.errors import StoreError
from memplan.probe.journal_file import transaction
from memplan.probe.records import from_json, to_json
from memplan.probe.trials import TrialRequest
from memplan.process_identity import ProcessIdentity, this_process
from memplan.results import Trial
from memplan.run_names import store_option
from memplan.workload import WorkloadSource

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path
    from types import TracebackType

    from memplan.plans import Plan
    from memplan.recipe import Recipe

NO_PLAN = "null"  # JSON for a finished run that was not to make a plan; an unfinished one has NULL


class JournalRun:
    """An open run, owned by this process; made by :meth:`Journal.open_run`."""

    def __init__(self, path: Path, run_id: str) -> None:
        self._path = path
        self.run_id = run_id

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # an error already on its way out matters more; the run is also freed when its owner ends
        with contextlib.suppress(StoreError):
            self.close()

    def trials(self) -> tuple[Trial, ...]:
        """What has been run so far, in order."""
        with transaction(self._path, "DEFERRED") as connection:
            return trials_of(connection, self.run_id)

    def finished_trial(self, recipe: Recipe) -> Trial | None:
        """Return the last finished trial of a recipe, however it ended."""
        return next((each for each in reversed(self.trials()) if each.recipe == recipe), None)

    def record(self, trial: Trial, request: TrialRequest) -> None:
        """Store a finished trial; it is on the disk when this returns.

        Args:
            trial: what was run and how it ended.
            request: what the child process was asked for; all requests of a run have the same workload.

        Raises:
            StoreError: the journal cannot be written, or another process has taken the run over.
        """
        with transaction(self._path) as connection:
            self._touch(connection)
            connection.execute(
                "INSERT INTO trials (run_id, number, trial, request) VALUES (?, ?, ?, ?)",
                (self.run_id, trial.number, to_json(trial), to_json(request, leaving_out="source")),
            )
            connection.execute("UPDATE runs SET source = ? WHERE id = ?", (_pickled(request.source), self.run_id))

    def command_for(self, trial: Trial) -> str:
        """Return the command that runs a trial of this run again."""
        return f"memplan trial {self.run_id} {trial.number}{store_option(self._path.parent)}"

    def finish(self, plan: Plan | None, *, failure: str | None = None) -> None:
        """Store the plan, or why there is none, and close the run for good; it is not resumed any more.

        Args:
            plan: the result; None where there is none, or the run was not to make one.
            failure: what the user was told of a run that failed, in one line.

        Raises:
            StoreError: the journal cannot be written, or another process has taken the run over.
        """
        with transaction(self._path) as connection:
            self._touch(connection)
            text = NO_PLAN if plan is None else to_json(plan)
            connection.execute(
                "UPDATE runs SET plan = ?, failure = ?, owner = NULL WHERE id = ?", (text, failure, self.run_id)
            )

    def close(self) -> None:
        """Release the run, finished or not, so that any process may resume it."""
        with transaction(self._path) as connection:
            connection.execute("UPDATE runs SET owner = NULL WHERE id = ? AND owner = ?", (self.run_id, this_owner()))

    def _touch(self, connection: sqlite3.Connection) -> None:
        changed = connection.execute(
            "UPDATE runs SET updated_at = ? WHERE id = ? AND owner = ?", (time_now(), self.run_id, this_owner())
        ).rowcount
        if changed != 1:
            raise StoreError(f"run {self.run_id} is not open in this process any more", where=str(self._path))


def trials_of(connection: sqlite3.Connection, run_id: str) -> tuple[Trial, ...]:
    """Read the trials of a run, in order."""
    rows = connection.execute("SELECT trial FROM trials WHERE run_id = ? ORDER BY position", (run_id,))
    return tuple(from_json(Trial, text) for (text,) in rows)


def time_now() -> str:
    """Return the time as the journal writes it: UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def this_owner() -> str:
    """Write the identity of this process as a run's owner."""
    process = this_process()
    return f"{process.host} {process.pid} {process.started}"


def is_alive(owner: str | None) -> bool:
    """Whether the owner still runs; presumed on another host, where it cannot be known."""
    if owner is None:
        return False
    host, pid, started = owner.rsplit(" ", 2)
    return ProcessIdentity(host=host, pid=int(pid), started=started).is_running() is not False


def _pickled(source: WorkloadSource) -> bytes:
    """Write a workload's source as a pickle of plain data; a config may hold dates and keys that JSON cannot."""
    return pickle.dumps((type(source).__name__, {each.name: getattr(source, each.name) for each in fields(source)}))


def stored_request(text: str, source: bytes) -> TrialRequest:
    """Read the request of a trial."""
    kind, parts = pickle.loads(source)  # noqa: S301 - the caller is about to run the user's code that it names
    kinds = {each.__name__: each for each in get_args(WorkloadSource)}
    return from_json(TrialRequest, text, source=kinds[kind](**parts))
