"""The kernel's counters of processes killed for want of memory, in files laid out as the kernel lays them out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.probe.oom_evidence import count_oom_kills
from tests.making import write_files

if TYPE_CHECKING:
    from pathlib import Path


def write_kernel_files(root: Path, *, group: str, vmstat: int, counters: dict[str, int]) -> None:
    write_files(root / "proc", {"self/cgroup": group, "vmstat": f"pgfault 7\noom_kill {vmstat}\n"})
    texts = {name: f"under_oom 0\noom 9\noom_kill {count}\noom_group_kill 4\n" for name, count in counters.items()}
    write_files(root / "sys/fs/cgroup", texts)


def test_kills_are_counted_in_a_version_2_group(tmp_path: Path) -> None:
    write_kernel_files(tmp_path, group="0::/job/7\n", vmstat=10, counters={"job/7/memory.events": 2})
    assert count_oom_kills(root=tmp_path) == 12


def test_kills_are_counted_in_a_version_1_group(tmp_path: Path) -> None:
    group = "9:name=systemd:/\n4:cpu,memory:/job/7\n"
    write_kernel_files(tmp_path, group=group, vmstat=10, counters={"memory/job/7/memory.oom_control": 3})
    assert count_oom_kills(root=tmp_path) == 13


def test_kills_are_unknown_where_the_kernel_tells_nothing(tmp_path: Path) -> None:
    assert count_oom_kills(root=tmp_path) is None
