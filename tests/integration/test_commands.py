"""Training commands probed from the command line: the user's own script, unchanged, on the CPU."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.cpu_budgets import cpu_budget
from tests.integration.conftest import memplan

if TYPE_CHECKING:
    from pathlib import Path

# One sample is 8192 x 32 fp32 numbers: 1 MiB. It is kept three times for the backward pass.
SCRIPT = """
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--bs", type=int)
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--amp", action="store_true")
parser.add_argument("--workers", type=int, default=0)
arguments = parser.parse_args()
net = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(
    torch.ones(1024, 1, 32).expand(-1, 8192, -1), batch_size=arguments.bs, num_workers=arguments.workers
)
for number, images in enumerate(loader):
    if number == arguments.steps:
        break
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=arguments.amp):
        loss = net(images).float().square().mean()
    loss.backward()
    optimizer.step()
print("trained")
"""
TRAIN = f"{sys.executable} train.py --bs {{micro_batch_size}} --steps {{steps}}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def processes_in(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder):
                found.append(process)
        except psutil.Error:
            continue
    return found


def probe(folder: Path, template: str, *options: str):
    return memplan(
        *("probe", "--device", "cpu", *cpu_budget(640).options, "--steps", "4", "--command", template),
        *options,
        cwd=folder,
    )


@pytest.mark.slow
def test_a_plain_loop_is_brought_into_the_band_and_its_line_is_given(folder: Path) -> None:
    ended = probe(folder, f"{TRAIN} --workers 1 {{precision:fp32=,bf16=--amp}}", "--json")
    assert ended.status == 0, ended.err
    plan = ended.document["plan"]
    peak_bytes, budget = plan["chosen"]["outcome"]["measurement"]["peak_device_bytes"], cpu_budget(640)
    assert budget.min_util <= peak_bytes / budget.total_bytes <= 0.8
    assert plan["command"].startswith(f"{sys.executable} train.py --bs {plan['recipe']['micro_batch_size']} ")
    assert {trial["recipe"]["precision"] for trial in ended.document["trials"]} == {"fp32", "bf16"}
    assert len(ended.document["trials"]) <= 8, ended.err
    assert processes_in(folder) == []


@pytest.mark.slow
def test_a_script_that_reads_its_batch_from_a_config_alone_is_tried_with_copies_of_it(folder: Path) -> None:
    reading = "import yaml\nread = yaml.safe_load(open(parser.parse_args().config))\n"
    script = SCRIPT.replace('"--bs", type=int', '"config"').replace("arguments = parser.parse_args()", reading)
    script = script.replace("arguments.bs", "read['batch_size']").replace(
        "arguments.amp", "read['precision'] == 'bf16'"
    )
    script = script.replace("arguments.workers", "0").replace("arguments.steps", "1000")
    (folder / "train.py").write_text(script)
    (folder / "run.yaml").write_text(text := "batch_size: 16  # samples\nprecision: fp32\n")
    ended = memplan(
        *("probe", "run.yaml", "--device", "cpu", *cpu_budget(1024).options, "--steps", "4", "--json"),
        *("--precision", "bf16"),
        *("--command", f"{sys.executable} train.py {{patched_config}}"),
        cwd=folder,
    )
    assert ended.status == 0, ended.err
    plan = ended.document["plan"]
    peak_bytes, budget = plan["chosen"]["outcome"]["measurement"]["peak_device_bytes"], cpu_budget(1024)
    assert budget.min_util <= peak_bytes / budget.total_bytes <= 0.8
    assert plan["command"] == f"{sys.executable} train.py run.yaml"
    diff = plan["config_patch"]["diff"]
    assert f"+batch_size: {plan['recipe']['micro_batch_size']}  # samples" in diff
    assert "+precision: bf16" in diff
    assert (folder / "run.yaml").read_text() == text


@pytest.mark.slow
def test_a_budget_that_nothing_fits_is_said_so(folder: Path) -> None:
    ended = memplan("probe", "--device", "cpu", "--budget", "300MiB", "--command", TRAIN, cwd=folder)
    assert ended.status == 3
    assert "nothing fits 300.0 MiB" in ended.err


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("python train.py --bs {batch}", "placeholder {batch} is not known"),
        ("python train.py", "has no {micro_batch_size}"),
    ],
)
def test_a_command_that_is_not_understood_changes_nothing_on_disk(folder: Path, template: str, said: str) -> None:
    ended = probe(folder, template)
    assert ended.status == 2
    assert said in ended.err
    assert not (folder / ".memplan").exists()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("print('nothing to train', end='')", "none of its Python processes imported torch.optim"),
        ("raise KeyError('backbone')", "KeyError: 'backbone'"),
        ("import sys; sys.exit('no such dataset')", "no such dataset"),
    ],
)
def test_a_script_that_does_not_train_ends_with_its_own_reason(folder: Path, script: str, said: str) -> None:
    (folder / "train.py").write_text(script)
    ended = probe(folder, TRAIN)
    assert ended.status == 2
    assert said in ended.err


def test_a_script_that_hangs_is_given_up_at_the_limit_that_is_named(folder: Path) -> None:
    (folder / "train.py").write_text("import time\ntime.sleep(600)\n")
    ended = probe(folder, TRAIN, "--trial-limit", "1s")
    assert ended.status == 2
    assert "(limit 1 s): none of its Python processes imported torch.optim" in ended.err
    assert processes_in(folder) == []


@pytest.mark.slow
def test_a_killed_run_leaves_no_process_and_resumes_with_its_finished_trials(folder: Path) -> None:
    few = ("--max-batch", "64", "--budget", cpu_budget(640).text, "--min-util", "0")  # sizes to choose among
    options = ("--device", "cpu", "--steps", "4", *few, "--command", f"{TRAIN} --workers 1")
    process = subprocess.Popen(
        [sys.executable, "-m", "memplan", "probe", *options], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    next(line for line in process.stdout if line.startswith(" 1 "))
    process.kill()
    process.communicate()
    _gone, alive = psutil.wait_procs(processes_in(folder), timeout=10)
    assert not alive, "a process of the command outlived memplan"
    resumed = memplan("probe", *options, cwd=folder)
    assert resumed.status == 0, resumed.err
    assert resumed.out.count("(journal)") == 1
