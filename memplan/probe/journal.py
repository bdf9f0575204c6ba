"""The journal: every run and every trial in one SQLite file, committed before the next trial starts.

A run belongs to the process that opened it. Where that process is gone, the next one with the same fingerprint takes
the run over and finds its finished trials; where it is alive, a run of its own is begun. So a killed run resumes, and
two at once do not touch each other's rows.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan.errors import StoreError, UsageError
from memplan.plans import Plan
from memplan.probe.journal_file import make_store, transaction
from memplan.probe.journal_run import NO_PLAN, JournalRun, is_alive, stored_request, this_owner, time_now, trials_of
from memplan.probe.records import from_json, to_json
from memplan.results import RunStatus, Trial
from memplan.run_names import DEFAULT_STORE, LAST_RUN
from memplan.training_checks import TrainingCheck

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping

    from memplan.probe.trials import TrialRequest


_FILE_NAME = "journal.sqlite3"
_LAST_FIRST = "ORDER BY updated_at DESC, id DESC"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """One run as the journal holds it.

    Args:
        run_id: its name, which sorts by time.
        created_at: when it was begun, UTC, ISO 8601.
        trials: what was run, in order.
        plan: the result; None where the run has not finished, or was not to make one.
        failure: what the user was told of a run that failed, in one line; None for any other.
        status: whether the run came to its end, still runs, or was interrupted and can be resumed.
        checks: what trainings with its plan really took, one for each process, in order.
    """

    run_id: str
    created_at: str
    trials: tuple[Trial, ...]
    plan: Plan | None
    failure: str | None
    status: RunStatus
    checks: tuple[TrainingCheck, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTrial:
    """One trial as the journal holds it.

    Args:
        run_id: the run it belongs to.
        trial: what was run and how it ended.
        request: what the child process was asked for, so that it can be asked again.
    """

    run_id: str
    trial: Trial
    request: TrialRequest


class Journal:
    """The runs stored in one folder.

    Args:
        store: folder of the journal; made, with a ``.gitignore`` of its own, when the first run is opened.
    """

    def __init__(self, store: Path | str = DEFAULT_STORE) -> None:
        self._store = Path(store)

    @property
    def path(self) -> Path:
        """The SQLite file."""
        return self._store / _FILE_NAME

    def open_run(self, fingerprint: str, facts: Mapping[str, Any], *, fresh: bool = False) -> JournalRun:
        """Resume the unfinished run with this fingerprint whose process is gone, or begin a new one.

        Use it as a context manager, or close it, so that it can be resumed from the same process.

        Args:
            fingerprint: of what is asked for.
            facts: the same, as JSON-ready data to be kept with the run.
            fresh: begin a new one in any case.

        Raises:
            StoreError: the journal cannot be written.
        """
        make_store(self._store)
        with transaction(self.path) as connection:
            rows = connection.execute(
                "SELECT id, owner FROM runs WHERE fingerprint = ? AND plan IS NULL ORDER BY updated_at DESC, id DESC",
                (fingerprint,),
            ).fetchall()
            run_id = next((run_id for run_id, owner in rows if not fresh and not is_alive(owner)), None)
            if run_id is None:
                run_id = _insert_run(connection, fingerprint, facts)
            else:
                connection.execute(
                    "UPDATE runs SET owner = ?, updated_at = ? WHERE id = ?", (this_owner(), time_now(), run_id)
                )
        return JournalRun(self.path, run_id)

    def find_plan(self, fingerprint: str) -> StoredRun | None:
        """Return the last run with this fingerprint that came to a plan; None where there is none.

        Raises:
            StoreError: the journal cannot be read.
        """
        condition = f"WHERE fingerprint = ? AND plan IS NOT NULL AND plan != '{NO_PLAN}' {_LAST_FIRST} LIMIT 1"
        found = self._select(condition, (fingerprint,))
        return found[0] if found else None

    def recall(self, run_id: str, plan: Plan) -> None:
        """Make a finished run the most recent one, with its plan as it is returned from the cache.

        Raises:
            StoreError: the journal cannot be written.
        """
        with transaction(self.path) as connection:
            connection.execute(
                "UPDATE runs SET plan = ?, updated_at = ? WHERE id = ?", (to_json(plan), time_now(), run_id)
            )

    def record_check(self, run_id: str, name: str, check: TrainingCheck) -> None:
        """Store what a training with a run's plan took, replacing an earlier check of the same name.

        Raises:
            StoreError: the journal cannot be written, or holds no such run.
        """
        if not self.path.exists():
            raise StoreError("there is no journal", where=str(self.path))
        with transaction(self.path) as connection:
            connection.execute(
                "INSERT INTO checks (name, run_id, training) VALUES (?, ?, ?)"
                " ON CONFLICT (name) DO UPDATE SET training = excluded.training",
                (name, run_id, to_json(check)),
            )

    def runs(self) -> tuple[StoredRun, ...]:
        """Every run, the one last written to first; none where there is no journal yet."""
        return self._select(_LAST_FIRST, ())

    def load(self, run_id: str) -> StoredRun:
        """Read one run by its id, an unambiguous prefix of it, or ``last`` for the one last written to.

        Raises:
            UsageError: there is no such run, or more than one.
        """
        found = self._named(run_id)
        if len(found) == 1:
            return found[0]
        known = ", ".join(each.run_id for each in (found or self.runs())[:5])
        if not known:
            raise UsageError("there are no runs", where=str(self.path), hint="memplan probe CONFIG makes one")
        problem = f"run {run_id!r} is not in the journal" if not found else f"run {run_id!r} is not unmistakable"
        raise UsageError(problem, where=str(self.path), hint=f"runs there: {known}")

    def _named(self, run_id: str) -> tuple[StoredRun, ...]:
        if run_id == LAST_RUN:
            return self._select(f"{_LAST_FIRST} LIMIT 1", ())
        exactly = self._select("WHERE id = ?", (run_id,))
        return exactly or self._select("WHERE substr(id, 1, length(?)) = ?", (run_id, run_id))

    def load_trial(self, run_id: str, number: int) -> StoredTrial:
        """Read one trial by the number it has in its run; the last of that number where a resumed run tried again.

        Raises:
            UsageError: there is no such run or trial.
        """
        run = self.load(run_id)
        with transaction(self.path, "DEFERRED") as connection:
            (source,) = connection.execute("SELECT source FROM runs WHERE id = ?", (run.run_id,)).fetchone()
            row = connection.execute(
                "SELECT trial, request FROM trials WHERE run_id = ? AND number = ? ORDER BY position DESC",
                (run.run_id, number),
            ).fetchone()
        if row is None:
            known = ", ".join(str(each.number) for each in run.trials)
            problem = f"run {run.run_id} has no trial {number}"
            raise UsageError(problem, where=str(self.path), hint=f"it has {known}" if known else "it has none")
        return StoredTrial(run_id=run.run_id, trial=from_json(Trial, row[0]), request=stored_request(row[1], source))

    def _select(self, condition: str, values: tuple[str, ...]) -> tuple[StoredRun, ...]:
        if not self.path.exists():
            return ()
        columns = "SELECT id, created_at, plan, failure, owner FROM runs "
        with transaction(self.path, "DEFERRED") as connection:
            rows = connection.execute(columns + condition, values).fetchall()
            return tuple(_stored_run(connection, row) for row in rows)


def _insert_run(connection: sqlite3.Connection, fingerprint: str, facts: Mapping[str, Any]) -> str:
    begun_at = time_now()
    run_id = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    connection.execute(
        "INSERT INTO runs (id, fingerprint, created_at, updated_at, facts, owner) VALUES (?, ?, ?, ?, ?, ?)",
        (run_id, fingerprint, begun_at, begun_at, json.dumps(dict(facts)), this_owner()),
    )
    return run_id


def _stored_run(connection: sqlite3.Connection, row: tuple[Any, ...]) -> StoredRun:
    run_id, created_at, plan, failure, owner = row
    return StoredRun(
        run_id=run_id,
        created_at=created_at,
        trials=trials_of(connection, run_id),
        plan=None if plan in (None, NO_PLAN) else from_json(Plan, plan),
        failure=failure,
        status=_status(plan, failure, owner),
        checks=_checks_of(connection, run_id),
    )


def _status(plan: str | None, failure: str | None, owner: str | None) -> RunStatus:
    if plan is None:
        return RunStatus.RUNNING if is_alive(owner) else RunStatus.INTERRUPTED
    return RunStatus.FINISHED if failure is None else RunStatus.FAILED


def _checks_of(connection: sqlite3.Connection, run_id: str) -> tuple[TrainingCheck, ...]:
    rows = connection.execute("SELECT training FROM checks WHERE run_id = ? ORDER BY rowid", (run_id,))
    return tuple(from_json(TrainingCheck, text) for (text,) in rows)
