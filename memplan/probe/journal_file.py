"""The SQLite file of a journal: its format, and durable transactions, one after another.

It is kept with a rollback journal, not a write-ahead log: that needs memory which all its users share, and so breaks
where machines share a folder over a network (sqlite.org/wal.html, "Overview"), as on most clusters. ``EXTRA`` syncs the
folder too once the rollback journal is gone; without that a power cut may take back the last commit
(sqlite.org/pragma.html#pragma_synchronous).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import TYPE_CHECKING

from memplan.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_APPLICATION_ID = 0x6D706C6E  # "mpln", which distinguishes the file from other programs' databases
_SCHEMA_VERSION = 6
_BUSY_TIMEOUT_S = 30.0
_DAMAGED = "delete it or move it away, by which the runs stored in it are lost, or name another folder with --store"
_READ_ONLY = "make it and its folder writable, or name another folder with --store"
_IN_USE = "free or unlock it, or name another folder with --store"
_HINTS = {  # by SQLite's primary result codes
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: _READ_ONLY,
}
_PRIMARY = 0xFF  # the bits of an extended result code that tell the primary one
_SCHEMA = """
CREATE TABLE runs (
  id TEXT PRIMARY KEY, fingerprint TEXT NOT NULL, created_at TEXT NOT NULL, updated_at TEXT NOT NULL,
  facts TEXT NOT NULL, plan TEXT, failure TEXT, owner TEXT, source BLOB
);
CREATE INDEX runs_by_fingerprint ON runs (fingerprint);
CREATE TABLE trials (
  position INTEGER PRIMARY KEY AUTOINCREMENT,
  run_id TEXT NOT NULL REFERENCES runs (id), number INTEGER NOT NULL, trial TEXT NOT NULL,
  request TEXT NOT NULL
);
CREATE INDEX trials_by_run ON trials (run_id);
CREATE TABLE checks (name TEXT PRIMARY KEY, run_id TEXT NOT NULL REFERENCES runs (id), training TEXT NOT NULL);
"""


def require_store(store: Path) -> None:
    """Make sure, before what may take long, that there is a place for a journal; nothing is made yet.

    Raises:
        StoreError: what is there is no folder, or no folder can be made or written to there.
    """
    there = next(each for each in (store, *store.absolute().parents) if each.exists())
    if not there.is_dir():
        problem = "this is no folder" if there == store else f"{there} is no folder"
        raise StoreError(problem, where=str(store), hint="name another folder with --store")
    if not os.access(there, os.W_OK):
        problem = f"the folder {there} cannot be written to"
        raise StoreError(problem, where=str(store), hint="name another folder with --store")


def make_store(store: Path) -> None:
    """Make the folder of a journal, kept out of version control.

    Raises:
        StoreError: it cannot be made or written to.
    """
    try:
        store.mkdir(parents=True, exist_ok=True)
        ignore_file = store / ".gitignore"
        if not ignore_file.exists():
            ignore_file.write_text("*\n")
    except OSError as error:
        raise _store_error(store, error) from error


@contextlib.contextmanager
def transaction(path: Path, kind: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
    """Open the journal for one transaction: all of it is stored, or nothing.

    Raises:
        StoreError: it cannot be used, is of another format, or is no journal.
    """
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None)) as connection:
            _prepare(connection, path)
            with _committed(connection, kind):
                yield connection
    except sqlite3.Error as error:
        raise _store_error(path, error) from error


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = EXTRA")
    if _identity(connection) == (_APPLICATION_ID, _SCHEMA_VERSION):
        return
    with _committed(connection, "IMMEDIATE"):
        _create_or_refuse(connection, path)


@contextlib.contextmanager
def _committed(connection: sqlite3.Connection, kind: str) -> Iterator[None]:
    """Commit what the block does, or take it back, unless SQLite has done so itself, as where the disk is full."""
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
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
    if application_id == _APPLICATION_ID:
        problem = f"the journal has format {version}, and this memplan reads {_SCHEMA_VERSION}"
        raise StoreError(problem, where=str(path), hint="use the memplan that wrote it, or another folder with --store")
    if application_id or version or connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
        raise StoreError("the file is not memplan's journal", where=str(path), hint="name another folder with --store")
    for statement in _SCHEMA.split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")


def _store_error(path: Path, error: Exception) -> StoreError:
    """Explain in one line why a journal cannot be used."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY  # only errors of SQLite itself have one
    hint = _READ_ONLY if isinstance(error, PermissionError) else _HINTS.get(code, _IN_USE)
    return StoreError(f"the journal cannot be used: {reason}", where=str(path), hint=hint)
