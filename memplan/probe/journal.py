"""The journal: every run and every trial in one SQLite file, committed before the next trial starts.

A run belongs to the process that opened it. Where that process is gone, the next one with the same fingerprint takes
the run over and finds its finished trials; where it is alive, a run of its own is begun. So a killed run resumes, and
two at once do not touch each other's rows.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil

from memplan.errors import StoreError, UsageError
from memplan.plans import Plan
from memplan.probe.records import from_json, to_json
from memplan.results import Trial

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from memplan.recipe import Recipe

DEFAULT_STORE = Path(".memplan")
_FILE_NAME = "journal.sqlite3"
_APPLICATION_ID = 0x6D706C6E  # "mpln", which tells the file from other programs' databases
_SCHEMA_VERSION = 1
_BUSY_TIMEOUT_S = 30.0
_NO_PLAN = "null"  # JSON for a finished run that was not to make a plan; an unfinished one has NULL
_SCHEMA = """
CREATE TABLE runs (
  id TEXT PRIMARY KEY, fingerprint TEXT NOT NULL, created_at TEXT NOT NULL, updated_at TEXT NOT NULL,
  facts TEXT NOT NULL, plan TEXT, owner TEXT
);
CREATE INDEX runs_by_fingerprint ON runs (fingerprint);
CREATE TABLE trials (
  position INTEGER PRIMARY KEY AUTOINCREMENT,
  run_id TEXT NOT NULL REFERENCES runs (id), number INTEGER NOT NULL, trial TEXT NOT NULL
);
CREATE INDEX trials_by_run ON trials (run_id);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """One run as the journal holds it.

    Args:
        run_id: its name, which sorts by time.
        fingerprint: of what was asked for; the same question has the same one.
        created_at: when it was begun, UTC, ISO 8601.
        updated_at: when it was last written to.
        facts: what was asked for, as JSON-ready data.
        trials: what was run, in order.
        plan: the result; None where the run has not finished, or was not to make one.
        is_finished: whether the run came to its end.
    """

    run_id: str
    fingerprint: str
    created_at: str
    updated_at: str
    facts: dict[str, Any]
    trials: tuple[Trial, ...]
    plan: Plan | None
    is_finished: bool


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

    def open_run(self, fingerprint: str, facts: Mapping[str, Any]) -> JournalRun:
        """Resume the unfinished run with this fingerprint whose process is gone, or begin a new one.

        Use it as a context manager, or close it, so that it can be resumed from the same process.

        Raises:
            StoreError: the journal cannot be written.
        """
        _make_store(self._store)
        with _transaction(self.path) as connection:
            rows = connection.execute(
                "SELECT id, owner FROM runs WHERE fingerprint = ? AND plan IS NULL ORDER BY updated_at DESC, id DESC",
                (fingerprint,),
            ).fetchall()
            run_id = next((run_id for run_id, owner in rows if not _is_alive(owner)), None)
            if run_id is None:
                run_id = _insert_run(connection, fingerprint, facts)
            else:
                connection.execute("UPDATE runs SET owner = ?, updated_at = ? WHERE id = ?", (_owner(), _now(), run_id))
        return JournalRun(self.path, run_id)

    def runs(self) -> tuple[StoredRun, ...]:
        """Every run, the one last written to first; none where there is no journal yet."""
        return self._select("ORDER BY updated_at DESC, id DESC", ())

    def latest_run(self) -> StoredRun | None:
        """The run last written to; None where there is none."""
        found = self._select("ORDER BY updated_at DESC, id DESC LIMIT 1", ())
        return found[0] if found else None

    def load(self, run_id: str) -> StoredRun:
        """Read one run by its id or an unmistakable beginning of it.

        Raises:
            UsageError: there is no such run, or more than one.
        """
        found = self._select("WHERE id = ?", (run_id,)) or self._select(
            "WHERE substr(id, 1, length(?)) = ?", (run_id, run_id)
        )
        if len(found) == 1:
            return found[0]
        known = ", ".join(each.run_id for each in (found or self.runs())[:5])
        problem = f"run {run_id!r} is not in the journal" if not found else f"run {run_id!r} is not unmistakable"
        raise UsageError(problem, where=str(self.path), hint=f"runs there: {known}" if known else "it holds no runs")

    def _select(self, condition: str, values: tuple[str, ...]) -> tuple[StoredRun, ...]:
        if not self.path.exists():
            return ()
        columns = "SELECT id, fingerprint, created_at, updated_at, facts, plan FROM runs "
        with _transaction(self.path, "DEFERRED") as connection:
            rows = connection.execute(columns + condition, values).fetchall()
            return tuple(_stored_run(connection, row) for row in rows)


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
        # an error on the way out has its own story; the owner's death frees the run as well
        with contextlib.suppress(StoreError):
            self.close()

    def trials(self) -> tuple[Trial, ...]:
        """What has been run so far, in order."""
        with _transaction(self._path, "DEFERRED") as connection:
            return _trials_of(connection, self.run_id)

    def finished_trial(self, recipe: Recipe, *, purpose: str | None = None) -> Trial | None:
        """Return the last finished trial of a recipe, however it ended; of one purpose only where that is given."""
        matching = (each for each in reversed(self.trials()) if each.recipe == recipe)
        return next((each for each in matching if purpose in (None, each.purpose)), None)

    def record(self, trial: Trial) -> None:
        """Store a finished trial; it is on the disk when this returns.

        Raises:
            StoreError: the journal cannot be written, or another process has taken the run over.
        """
        with _transaction(self._path) as connection:
            self._touch(connection)
            connection.execute(
                "INSERT INTO trials (run_id, number, trial) VALUES (?, ?, ?)",
                (self.run_id, trial.number, to_json(trial)),
            )

    def finish(self, plan: Plan | None) -> None:
        """Store the plan, where the run was to make one, and give the run up; it is not resumed any more.

        Raises:
            StoreError: the journal cannot be written, or another process has taken the run over.
        """
        with _transaction(self._path) as connection:
            self._touch(connection)
            text = _NO_PLAN if plan is None else to_json(plan)
            connection.execute("UPDATE runs SET plan = ?, owner = NULL WHERE id = ?", (text, self.run_id))

    def close(self) -> None:
        """Give the run up, finished or not, so that any process may resume it."""
        with _transaction(self._path) as connection:
            connection.execute("UPDATE runs SET owner = NULL WHERE id = ? AND owner = ?", (self.run_id, _owner()))

    def _touch(self, connection: sqlite3.Connection) -> None:
        changed = connection.execute(
            "UPDATE runs SET updated_at = ? WHERE id = ? AND owner = ?", (_now(), self.run_id, _owner())
        ).rowcount
        if changed != 1:
            raise StoreError(f"run {self.run_id} is not open in this process any more", where=str(self._path))


def _insert_run(connection: sqlite3.Connection, fingerprint: str, facts: Mapping[str, Any]) -> str:
    now = _now()
    run_id = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    connection.execute(
        "INSERT INTO runs (id, fingerprint, created_at, updated_at, facts, owner) VALUES (?, ?, ?, ?, ?, ?)",
        (run_id, fingerprint, now, now, json.dumps(dict(facts)), _owner()),
    )
    return run_id


def _stored_run(connection: sqlite3.Connection, row: tuple[str, str, str, str, str, str | None]) -> StoredRun:
    run_id, fingerprint, created_at, updated_at, facts, plan = row
    return StoredRun(
        run_id=run_id,
        fingerprint=fingerprint,
        created_at=created_at,
        updated_at=updated_at,
        facts=json.loads(facts),
        trials=_trials_of(connection, run_id),
        plan=None if plan in (None, _NO_PLAN) else from_json(Plan, plan),
        is_finished=plan is not None,
    )


def _trials_of(connection: sqlite3.Connection, run_id: str) -> tuple[Trial, ...]:
    rows = connection.execute("SELECT trial FROM trials WHERE run_id = ? ORDER BY position", (run_id,))
    return tuple(from_json(Trial, text) for (text,) in rows)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _owner() -> str:
    """Name this process so that no later one can be mistaken for it: host, process id and start time."""
    return _owner_text(psutil.Process())


def _owner_text(process: psutil.Process) -> str:
    return f"{socket.gethostname()} {process.pid} {process.create_time():.2f}"


def _is_alive(owner: str | None) -> bool:
    """Whether the owner still runs; on another host that cannot be known, and it is taken to."""
    if owner is None:
        return False
    host, pid, _ = owner.rsplit(" ", 2)
    if host != socket.gethostname():
        return True
    try:
        process = psutil.Process(int(pid))
        return process.status() != psutil.STATUS_ZOMBIE and _owner_text(process) == owner
    except psutil.NoSuchProcess:
        return False


def _make_store(store: Path) -> None:
    try:
        store.mkdir(parents=True, exist_ok=True)
        ignore_file = store / ".gitignore"
        if not ignore_file.exists():
            ignore_file.write_text("*\n")
    except OSError as error:
        raise _store_error(store, error) from error


@contextlib.contextmanager
def _transaction(path: Path, kind: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
    """Open the journal for one transaction: all of it is stored, or nothing."""
    try:
        connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None)
        try:
            _prepare(connection, path)
            connection.execute(f"BEGIN {kind}")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise _store_error(path, error) from error


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")
    if _identity(connection) == (_APPLICATION_ID, _SCHEMA_VERSION):
        return
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        _create_or_refuse(connection, path)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _identity(connection: sqlite3.Connection) -> tuple[int, int]:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return application_id, version


def _create_or_refuse(connection: sqlite3.Connection, path: Path) -> None:
    application_id, version = _identity(connection)
    if application_id == _APPLICATION_ID and version == _SCHEMA_VERSION:
        return  # another process was quicker
    if application_id == _APPLICATION_ID and version > _SCHEMA_VERSION:
        problem = f"the journal has format {version}, and this memplan reads {_SCHEMA_VERSION}"
        raise StoreError(problem, where=str(path), hint="use a newer memplan, or another folder with --store")
    if application_id or version or connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
        raise StoreError("the file is not memplan's journal", where=str(path), hint="name another folder with --store")
    for statement in _SCHEMA.split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")


def _store_error(path: Path, error: Exception) -> StoreError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return StoreError(
        f"the journal cannot be used: {reason}",
        where=str(path),
        hint="free or unlock it, or name another folder with --store",
    )
