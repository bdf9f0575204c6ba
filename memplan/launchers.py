"""What a launcher of several processes (torchrun, srun, Open MPI's mpirun) says to each of them, and in a command.

Sources: "torchrun (Elastic Launch)", section "Environment Variables", in PyTorch's documentation; "OUTPUT ENVIRONMENT
VARIABLES" of Slurm's ``srun`` and ``sbatch``; "Environment variables set by mpirun" in Open MPI's.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# What names one process's place among the others; a trial is a run of its own and must not take part.
_PLACES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
)
_PLACE_PREFIXES = ("TORCHELASTIC_", "SLURM_STEP", "SLURM_TASKS_PER", "OMPI_COMM_WORLD_", "PMI_", "PMIX_")
_RUN_NAMES = (
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT",
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
)
# Options of torchrun, of DeepSpeed's launcher and of detectron2's; accelerate's counts the processes of all machines.
_PER_NODE = re.compile(r"--(?:nproc[-_]per[-_]node|num[-_]gpus)(?:=|\s+)(\d+)\b")
_NODES = re.compile(r"--(?:nnodes|num[-_]nodes|num[-_]machines)(?:=|\s+)(\d*)")
_IN_ALL = re.compile(
    r"(?:\baccelerate\s+launch\b.*?--num[-_]processes(?:=|\s+)|\bmpi(?:run|exec)\b.*?\s-np?\s+)(\d+)\b", re.DOTALL
)
_LAUNCHERS = re.compile(r"\b(?:torchrun|torch\.distributed|accelerate|deepspeed)\b")
_SHARING_OPTIONS = re.compile(r"\b(?:accelerate\s+launch|mpi(?:run|exec)|srun)\b")
_PROGRAM = re.compile(r"(?<!\S)(?:\S+\.py[\"']?(?!\S)|-m\s+(?!torch\.distributed|accelerate|deepspeed))")
# Of Slurm: processes in all, those of a node, and nodes.
_SRUN = re.compile(r"\bsrun\b")
_DIRECTIVE = re.compile(r"^#SBATCH\s+(.*)", re.MULTILINE)
_TASKS = re.compile(r"(?<!\S)(?:--ntasks(?:=|\s+)|-n\s*)(\d+)\b")
_TASKS_PER_NODE = re.compile(r"(?<!\S)--ntasks-per-node(?:=|\s+)(\d+)\b")
_JOB_NODES = re.compile(r"(?<!\S)(?:--nodes(?:=|\s+)|-N\s*)(\d+)\b(?!-)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """This process's place among those that were started together.

    Args:
        rank: from 0.
        world_size: how many there are, at least 2.
        local_world_size: how many of them are on this machine; None where the launcher does not say.
        run_name: names the run, the same in all its processes and another one after a restart.
    """

    rank: int
    world_size: int
    local_world_size: int | None
    run_name: str


def read_launch(environment: Mapping[str, str]) -> Launch | None:
    """Return this process's place; None where it was started alone."""
    for rank_name, size_name, local_name in (
        ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS_PER_NODE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ):
        rank, size = _count(environment.get(rank_name)), _count(environment.get(size_name))
        if rank is not None and size is not None and size > 1:
            return Launch(
                rank=rank,
                world_size=size,
                local_world_size=_count(environment.get(local_name)),
                run_name=" ".join(f"{name}={environment[name]}" for name in _RUN_NAMES if name in environment),
            )
    return None


def is_first_process(environment: Mapping[str, str]) -> bool:
    """Whether this process is the first of its launch, or was started alone."""
    launch = read_launch(environment)
    return launch is None or launch.rank == 0


def launched_world_size(environment: Mapping[str, str]) -> int | None:
    """Return how many processes a launcher starts or a job requests; None where neither can be read."""
    found = (_count(environment.get(name)) for name in ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"))
    return next((size for size in found if size), None)


def world_size_of_command(line: str, script: str = "") -> int | None:
    """Return how many replicas the launchers in a command line start; None where it has none, or they do not say.

    Args:
        line: the command.
        script: the job script that it is part of, whose ``#SBATCH`` lines hold for ``srun`` as well.
    """
    launcher = _options_of_launcher(line)
    if in_all := _IN_ALL.search(launcher):
        return int(in_all[1]) or None
    per_node, nodes = _PER_NODE.search(line), _NODES.search(line)  # detectron2's scripts launch their own processes
    tasks = _tasks_of_slurm(launcher, script)
    if per_node is None:
        return None if _LAUNCHERS.search(line) else tasks
    return int(per_node[1]) * (int(nodes[1] or tasks or 0) if nodes else 1) or None


def _options_of_launcher(line: str) -> str:
    """Return a command from its first launcher whose options programs share, up to the program; empty without one."""
    launcher = _SHARING_OPTIONS.search(line)
    return _PROGRAM.split(line[launcher.start() :], maxsplit=1)[0] if launcher else ""


def _tasks_of_slurm(line: str, script: str) -> int | None:
    """Return how many processes ``srun`` starts, of which each may start more; None where it does not, or is not said.

    Slurm's documentation of ``srun`` and ``sbatch``: a count of all wins over one of each node, and without either each
    node has one.
    """
    if not _SRUN.search(line):
        return None
    said = " ".join([*_DIRECTIVE.findall(script), line])
    tasks, *others = (pattern.findall(said) for pattern in (_TASKS, _TASKS_PER_NODE, _JOB_NODES))
    if tasks:
        return int(tasks[-1]) or None
    return math.prod(int(each[-1]) for each in others if each) or None if any(others) else None


def without_launch_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that give a process its place among others."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _PLACES and not name.startswith(_PLACE_PREFIXES)
    }


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
