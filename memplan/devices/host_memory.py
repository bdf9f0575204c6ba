"""This machine: main memory as this process may use it and what its control group leaves of it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from memplan.units import KIB

if TYPE_CHECKING:
    from collections.abc import Iterator

_NO_LIMIT_BYTES = 1 << 60  # a v1 group without a limit says 2**63 less one page
_ROOT = Path("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMemory:
    """Main memory of a control group that has a limit.

    Args:
        limit_bytes: what its processes may hold.
        used_bytes: what they hold, without file pages that can be dropped.
    """

    limit_bytes: int
    used_bytes: int

    @property
    def room_bytes(self) -> int:
        """What is left; below 0 where the group is over its limit."""
        return self.limit_bytes - self.used_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Main memory now.

    Args:
        total_bytes: of the machine.
        available_bytes: what the machine can give without swapping.
        group: the control group with the least room; None where none has a limit.
    """

    total_bytes: int
    available_bytes: int
    group: GroupMemory | None = None

    @property
    def limit_bytes(self) -> int:
        """The most this process could ever hold: the smaller of what the machine and its control group allow."""
        return self.total_bytes if self.group is None else min(self.total_bytes, self.group.limit_bytes)

    @property
    def free_bytes(self) -> int:
        """What this process can still take: the smaller of what the machine and its control group leave."""
        if self.group is None:
            return self.available_bytes
        return max(min(self.available_bytes, self.group.room_bytes), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFiles:
    """Where one version of control groups keeps its figures: files of a group, and a line of its ``memory.stat``."""

    limit: str
    usage: str
    droppable: str
    kills: str


_V1 = GroupFiles(
    limit="memory.limit_in_bytes",
    usage="memory.usage_in_bytes",
    droppable="total_inactive_file",
    kills="memory.oom_control",
)
_V2 = GroupFiles(limit="memory.max", usage="memory.current", droppable="inactive_file", kills="memory.events")


def host_memory(*, root: Path = _ROOT) -> HostMemory:
    """Read main memory; control groups of either version are found below ``root``."""
    machine = psutil.virtual_memory()
    tightest = min(_limited_groups(root), key=lambda group: group.room_bytes, default=None)
    return HostMemory(
        total_bytes=machine.total,
        available_bytes=machine.available,
        group=tightest,
    )


def resident_bytes() -> int:
    """Resident set of this process now."""
    return _own_status_bytes("VmRSS")


def peak_resident_bytes() -> int:
    """Largest resident set of this process since it started its program, or since its peak was forgotten."""
    return _own_status_bytes("VmHWM")


def forget_peak_resident_bytes() -> None:
    """Let the peak of the resident set begin anew, where the kernel allows it (``clear_refs`` in ``proc(5)``)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def private_data_bytes() -> int:
    """Private memory of this process now, pages that were never touched included."""
    return _own_status_bytes("VmData")


def _own_status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * KIB
    raise OSError(f"/proc/self/status has no {name}")


def _limited_groups(root: Path) -> Iterator[GroupMemory]:
    """Every group this process is in that has a limit, from the innermost outwards."""
    for files, mount, inner in memory_groups(root=root):
        for folder in (inner, *inner.parents):
            group = _group(folder, files)
            if group is not None:
                yield group
            if folder == mount:
                break


def memory_groups(*, root: Path = _ROOT) -> Iterator[tuple[GroupFiles, Path, Path]]:
    """Yield the groups that this process's memory is in: their kind of files, the outermost folder and their own."""
    mounts = root / "sys/fs/cgroup"
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield _V2, mounts, mounts / path.lstrip("/")
            elif "memory" in controllers.split(","):
                yield _V1, mounts / "memory", mounts / "memory" / path.lstrip("/")


def _group(folder: Path, files: GroupFiles) -> GroupMemory | None:
    """One group's limit and use; None where it has no limit, or is not visible from inside a container."""
    try:
        limit = (folder / files.limit).read_text().strip()
        usage_bytes = int((folder / files.usage).read_text())
        statistics = (folder / "memory.stat").read_text()
    except OSError:
        return None
    if limit == "max" or int(limit) >= _NO_LIMIT_BYTES:
        return None
    named = dict(line.split() for line in statistics.splitlines())
    used_bytes = usage_bytes - int(named.get(files.droppable, 0))
    return GroupMemory(limit_bytes=int(limit), used_bytes=used_bytes)
