"""Whether the kernel has killed processes for lack of memory, by its own counters."""

from __future__ import annotations

from pathlib import Path

from memplan.devices.host_memory import memory_groups

_ROOT = Path("/")


def count_oom_kills(*, root: Path = _ROOT) -> int | None:
    """Processes the kernel has killed for lack of memory so far, in this cgroup and on this machine; None if unknown.

    Only a rise between two calls means anything. Sources: ``oom_kill`` of ``memory.events`` (cgroup v2), of
    ``memory.oom_control`` (v1) and of ``/proc/vmstat``; the v2 file counts the group's descendants too.
    """
    of_groups = {folder / files.kills for files, mount, own in memory_groups(root=root) for folder in (own, mount)}
    counts = [count for file in (root / "proc/vmstat", *of_groups) if (count := _counter(file)) is not None]
    return sum(counts) if counts else None


def has_killed_since(kills_before: int | None) -> bool:
    """Whether the kernel is known to have killed a process for lack of memory since its kills were counted."""
    kills_now = count_oom_kills()
    return None not in (kills_before, kills_now) and kills_before != kills_now


def _counter(file: Path) -> int | None:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    values = [line.split()[1] for line in lines if line.startswith("oom_kill ")]
    return int(values[0]) if values else None
