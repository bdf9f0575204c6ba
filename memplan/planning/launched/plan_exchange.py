"""The two files through which the processes of one run share a plan: who is making it, and the answer."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from memplan.errors import StoreError
from memplan.plans import Plan
from memplan.probe.journal_file import make_store
from memplan.probe.records import from_json, to_json
from memplan.process_identity import ProcessIdentity
from memplan.textfiles import write_text_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from memplan.launchers import Launch

T = TypeVar("T")
_KEPT_S = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """Which rank 0 has begun to make the plan; ``announced_at`` in seconds since the epoch."""

    by: ProcessIdentity
    announced_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An error of memplan's, as it crosses from one process to another."""

    kind: str
    problem: str
    where: str | None
    hint: str | None
    detail: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of rank 0: a plan, or why there is none; ``announced_at`` in seconds since the epoch."""

    by: ProcessIdentity
    announced_at: float
    plan: Plan | None
    failure: Failure | None


class PlanExchange:
    """The files of one plan in one run.

    Args:
        store: folder of the journal, which all ranks must see.
        launch: rank and world size of this process.
        number: how many plans this process has requested, this one included.
    """

    def __init__(self, store: Path, launch: Launch, number: int) -> None:
        self._name = name = hashlib.sha256(f"{launch.run_name} {launch.world_size} {number}".encode()).hexdigest()[:16]
        self._folder = store / "launches"
        self.answer_path = self._folder / f"{name}.answer.json"
        self.announcement_path = self._folder / f"{name}.announcement.json"
        self._others = launch.world_size - 1
        self._store = store

    def announce(self, process: ProcessIdentity) -> None:
        """Remove what an earlier run left, and announce who makes the plan now."""
        make_store(self._store)
        self._folder.mkdir(exist_ok=True)
        for path in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another run tidies up as well
                if path.name.startswith(self._name) or time.time() - path.stat().st_mtime > _KEPT_S:
                    path.unlink()
        write_text_atomically(self.announcement_path, to_json(Announcement(by=process, announced_at=time.time())))

    def renew(self) -> None:
        """Renew the announcement: rank 0 still runs."""
        with contextlib.suppress(OSError):
            os.utime(self.announcement_path)

    def publish(self, answer: Answer) -> None:
        """Publish the answer to the other ranks."""
        write_text_atomically(self.answer_path, to_json(answer))

    def acknowledge(self, rank: int) -> None:
        """Confirm to rank 0 that a rank has the answer."""
        with contextlib.suppress(OSError):
            (self._folder / f"{self._name}.{rank}.acknowledged").touch()

    @property
    def is_acknowledged_by_all(self) -> bool:
        """Whether every other rank has the answer."""
        return len(list(self._folder.glob(f"{self._name}.*.acknowledged"))) >= self._others

    def answer(self) -> Answer | None:
        """Read the answer; None where there is none yet, or another version of memplan wrote it."""
        return _read(Answer, self.answer_path)

    def announcement(self) -> Announcement | None:
        """Read who makes the plan; None where nothing is announced yet, or another version of memplan wrote it."""
        return _read(Announcement, self.announcement_path)

    def renewed_at(self) -> float | None:
        """When the announcement was last renewed, by the clock of the file system; None where there is none."""
        try:
            return self.announcement_path.stat().st_mtime
        except OSError:
            return None


def _read(kind: type[T], path: Path) -> T | None:
    with contextlib.suppress(FileNotFoundError, StoreError):
        return from_json(kind, path.read_text(encoding="utf-8"))
    return None
