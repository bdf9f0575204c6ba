"""Main memory and control groups of both versions, read from folders laid out as the kernel does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.devices.host_memory import (
    GroupMemory,
    HostMemory,
    forget_peak_resident_bytes,
    host_memory,
    peak_resident_bytes,
)
from memplan.units import GIB, MIB
from tests.making import write_files

if TYPE_CHECKING:
    from pathlib import Path


def lay_out(root: Path, membership: str, files: dict[str, str]) -> Path:
    write_files(root, {"proc/self/cgroup": membership, **{name: f"{text}\n" for name, text in files.items()}})
    return root


def test_this_machine_has_memory() -> None:
    memory = host_memory()
    assert 0 < memory.free_bytes <= memory.available_bytes <= memory.total_bytes


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    memory = host_memory(root=tmp_path)
    assert memory.group is None
    assert memory.limit_bytes == memory.total_bytes
    assert memory.free_bytes == memory.available_bytes


def test_a_version_2_group_leaves_its_limit_less_what_cannot_be_dropped(tmp_path: Path) -> None:
    files = {"memory.max": str(64 * MIB), "memory.current": str(48 * MIB), "memory.stat": f"inactive_file {8 * MIB}"}
    group = {f"sys/fs/cgroup/job/{name}": text for name, text in files.items()}
    memory = host_memory(root=lay_out(tmp_path, "0::/job", group))
    assert memory.group == GroupMemory(limit_bytes=64 * MIB, used_bytes=40 * MIB)
    assert memory.limit_bytes == 64 * MIB
    assert memory.free_bytes == 24 * MIB


def test_a_version_1_group_leaves_its_limit_less_what_cannot_be_dropped(tmp_path: Path) -> None:
    files = {
        "memory.limit_in_bytes": str(64 * MIB),
        "memory.usage_in_bytes": str(48 * MIB),
        "memory.stat": f"inactive_file 0\ntotal_inactive_file {8 * MIB}",
    }
    group = {f"sys/fs/cgroup/memory/job/{name}": text for name, text in files.items()}
    memory = host_memory(root=lay_out(tmp_path, "9:cpu,cpuacct:/\n4:memory:/job", group))
    assert memory.free_bytes == 24 * MIB


def test_the_outer_group_counts_where_it_leaves_less(tmp_path: Path) -> None:
    def group(folder: str, limit: str, used: int) -> dict[str, str]:
        stem = f"sys/fs/cgroup/{folder}"
        return {f"{stem}/memory.max": limit, f"{stem}/memory.current": str(used), f"{stem}/memory.stat": "anon 1"}

    files = {**group("outer", str(32 * MIB), 30 * MIB), **group("outer/inner", str(16 * MIB), 8 * MIB)}
    assert host_memory(root=lay_out(tmp_path, "0::/outer/inner", files)).free_bytes == 2 * MIB


def test_a_group_named_as_seen_from_outside_a_container_is_found_at_the_mount(tmp_path: Path) -> None:
    files = {"memory.max": str(64 * MIB), "memory.current": "0", "memory.stat": "anon 0"}
    group = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    memory = host_memory(root=lay_out(tmp_path, "0::/kubepods/pod1/not-mounted-here", group))
    assert memory.limit_bytes == 64 * MIB


def test_groups_without_a_limit_have_none(tmp_path: Path) -> None:
    v2 = {"sys/fs/cgroup/memory.max": "max", "sys/fs/cgroup/memory.current": "0", "sys/fs/cgroup/memory.stat": "anon 0"}
    assert host_memory(root=lay_out(tmp_path / "v2", "0::/", v2)).group is None
    v1 = {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "0",
        "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 0",
    }
    assert host_memory(root=lay_out(tmp_path / "v1", "4:memory:/", v1)).group is None


def test_a_group_over_its_limit_leaves_nothing() -> None:
    over = GroupMemory(limit_bytes=GIB, used_bytes=GIB + MIB)
    memory = HostMemory(total_bytes=8 * GIB, available_bytes=4 * GIB, group=over)
    assert memory.free_bytes == 0


def test_the_peak_of_this_process_begins_anew_once_it_is_forgotten() -> None:
    block = bytearray(64 * MIB)
    block[:] = b"x" * len(block)
    del block
    before = peak_resident_bytes()
    forget_peak_resident_bytes()
    assert peak_resident_bytes() < before - 60 * MIB  # the kernel counts pages by the dozen
