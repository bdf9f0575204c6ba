"""Two ranks of torchrun on the CPU: one of them plans, both train with the same plan."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from memplan.probe.journal import Journal

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import json, os, sys
import torch
import torch.distributed as dist
from torch import nn
import memplan


def model():
    assert "RANK" not in os.environ, "a trial has taken its parent's place among the ranks"
    return nn.Sequential(nn.Linear(512, 512, bias=False), nn.ReLU())


workload = memplan.Workload(
    model=model,
    batch=lambda b: torch.ones(b, 2048, 512),  # 4 MiB a sample
    loss=lambda model, batch: model(batch).mean(),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
)
recipe = memplan.Recipe(micro_batch_size=2, learning_rate=0.1)
plan = memplan.plan(workload, recipe=recipe, device=sys.argv[1], precision="fp32", global_batch=int(sys.argv[2]))
dist.init_process_group("gloo")
seen = torch.tensor([plan.recipe.micro_batch_size, plan.recipe.accumulation_steps, plan.recipe.world_size])
sizes = [torch.zeros_like(seen) for _ in range(dist.get_world_size())]
dist.all_gather(sizes, seen)
if dist.get_rank() == 0:
    print(json.dumps([each.tolist() for each in sizes]))
dist.destroy_process_group()
"""


def torchrun(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    return subprocess.run(
        [*command, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )


@pytest.mark.slow
def test_rank_0_plans_for_both_and_no_trial_runs_twice(tmp_path: Path) -> None:
    ended = torchrun(tmp_path, "24GiB", "1024")
    assert ended.returncode == 0, ended.stderr
    first, second = json.loads(ended.stdout.splitlines()[-1])
    assert first == second
    assert first[0] * first[1] * first[2] == 1024
    assert first[2] == 2  # replicas, taken from the launcher
    (run,) = Journal(tmp_path / ".memplan").runs()
    recipes = [each.recipe for each in run.trials]
    assert recipes
    assert len(recipes) == len(set(recipes))


@pytest.mark.slow
def test_a_plan_that_fails_stops_both_with_the_same_words(tmp_path: Path) -> None:
    ended = torchrun(tmp_path, "24GiB", "1023")
    assert ended.returncode != 0
    words = re.findall(r"UsageError: (.*)", ended.stderr)
    assert len(words) == 2
    assert words[0] == words[1] == "global batch 1023 cannot be shared evenly by 2 replicas"
