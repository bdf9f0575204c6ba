"""What a launcher's environment says."""

from __future__ import annotations

import pytest

from memplan.launchers import launched_world_size, read_launch, without_launch_variables, world_size_of_command

TORCHRUN = {
    "RANK": "1",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "job-7",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_PROCID": "3",
}


MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-node0-9@1",
}


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("torchrun --nproc-per-node 2 train.py", 2),
        ("torchrun --nnodes=2 --nproc_per_node=4 train.py", 8),
        ("torchrun --nproc-per-node gpu train.py", None),
        ("torchrun --nnodes $NODES --nproc-per-node 4 train.py", None),
        ("accelerate launch --config_file a.yaml --num_processes 4 --num_machines 2 train.py", 4),
        ("python prepare.py --num_processes 4", None),
        ("deepspeed --num_gpus 2 train.py", 2),
        ("mpirun -np 4 python train.py", 4),
        ("srun -n 4 python train.py", 4),
        ("srun --nodes=2 --ntasks-per-node 4 python train.py", 8),
        ("srun --nodes 2-4 --cpu-bind cores python train.py", None),
        ("srun -N2 torchrun --nnodes $SLURM_NNODES --nproc-per-node 4 train.py", 8),
        ("srun -N2 torchrun --nnodes $SLURM_NNODES --nproc-per-node gpu train.py", None),
        ("python train.py --bs {micro_batch_size}", None),
        ("srun python train.py -n 100 --nodes 3", None),
        ("mpirun python -m package.train -n 100", None),
        ("python prepare.py && srun -n 2 python 'train.py' -n 100", 2),
        ("python train_net.py --num-gpus 8 --num-machines 2", 16),
    ],
)
def test_a_command_tells_how_many_replicas_its_launcher_starts(line: str, count: int | None) -> None:
    assert world_size_of_command(line) == count


@pytest.mark.parametrize(
    ("options", "line", "count"),
    [
        (("--nodes=2", "--ntasks-per-node=4"), "srun python train.py", 8),
        (("-n 16", "--ntasks-per-node=4"), "srun python train.py", 16),
        (("-N 2",), "srun --ntasks=6 python train.py", 6),
        (("--nodes=2", "--ntasks-per-node=4"), "python train.py", None),  # the batch script itself is one process
        (("--cpus-per-task=4",), "srun python train.py", None),
    ],
)
def test_what_a_job_asks_of_slurm_is_what_srun_starts(options: tuple[str, ...], line: str, count: int | None) -> None:
    script = "\n".join(["#!/bin/bash", *(f"#SBATCH {each}" for each in options), line])
    assert world_size_of_command(line, script) == count


def test_a_process_of_torchrun_knows_its_place() -> None:
    launch = read_launch({**TORCHRUN, "HOME": "/root"})
    assert launch is not None
    assert (launch.rank, launch.world_size, launch.local_world_size) == (1, 4, 2)


def test_all_ranks_have_one_run_name_and_a_restart_has_another() -> None:
    first, second = read_launch(TORCHRUN), read_launch({**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0"})
    restarted = read_launch({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"})
    assert first is not None
    assert second is not None
    assert restarted is not None
    assert first.run_name == second.run_name != restarted.run_name


def test_a_task_of_srun_knows_its_place() -> None:
    launch = read_launch(SLURM)
    assert launch is not None
    assert (launch.rank, launch.world_size) == (3, 8)


def test_a_process_of_mpirun_knows_its_place() -> None:
    launch = read_launch(MPIRUN)
    assert launch is not None
    assert (launch.rank, launch.world_size, launch.local_world_size) == (3, 4, 2)
    again = read_launch({**MPIRUN, "PMIX_NAMESPACE": "prterun-node0-10@1"})
    assert again is not None
    assert launch.run_name != again.run_name
    assert launched_world_size(MPIRUN) == 4


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"},
        {"SLURM_NTASKS": "8", "SLURM_PROCID": "0"},  # the batch script itself, of which there is one
        {"RANK": "high", "WORLD_SIZE": "4"},
    ],
    ids=["plain", "one process", "batch script", "other words"],
)
def test_a_process_that_was_started_alone_has_no_place(environment: dict[str, str]) -> None:
    assert read_launch(environment) is None


def test_the_world_size_is_the_launchers_or_the_jobs() -> None:
    assert launched_world_size(TORCHRUN) == 4
    assert launched_world_size({"SLURM_NTASKS": "8"}) == 8
    assert launched_world_size({"HOME": "/root"}) is None


def test_variables_of_the_place_are_told_from_others() -> None:
    others = {"HOME": "/root", "OMP_NUM_THREADS": "1", "SLURM_JOB_ID": "77", "SLURM_CPUS_PER_TASK": "4"}
    assert without_launch_variables({**TORCHRUN, **others}) == others
    assert without_launch_variables(SLURM) == {"SLURM_JOB_ID": "77"}
    assert without_launch_variables({**MPIRUN, **others}) == others


def test_a_role_of_torchruns_is_told_from_the_users_own() -> None:
    launched = {"ROLE_RANK": "1", "ROLE_WORLD_SIZE": "4", "ROLE_NAME": "default"}
    assert without_launch_variables({**launched, "ROLE_ARN": "arn:aws:iam::1:role/train"}) == {
        "ROLE_ARN": "arn:aws:iam::1:role/train"
    }
