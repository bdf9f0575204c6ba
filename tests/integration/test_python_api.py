"""The Python API from a script of lambdas and closures, which is what notebooks have at hand."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import memplan
from memplan.units import MIB
from tests.cpu_budgets import cpu_budget

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SCRIPT = """
import json, random, sys
import torch
from torch import nn
import memplan

width = {width}  # Linear(512, 512) without bias is 1 MiB
workload = memplan.Workload(
    model=lambda: nn.Sequential(nn.Linear(width, width, bias=False), nn.ReLU()),
    batch=lambda b: torch.ones(b, 2**20 // width, width),  # 4 MiB a sample
    loss=lambda model, batch: model(batch).mean(),
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
)
torch.manual_seed(7)
random.seed(7)
before = torch.get_rng_state(), random.getstate()
recipe = memplan.Recipe(micro_batch_size=2, precision="fp32")
"""

CHECK = """
assert torch.equal(before[0], torch.get_rng_state()), "the caller's random state of torch has changed"
assert before[1] == random.getstate(), "the caller's random state of Python has changed"
with torch.autocast("cpu", dtype=torch.bfloat16):
    normed = nn.functional.layer_norm(torch.ones(2, 4, dtype=torch.bfloat16), (4,))
assert normed.dtype == torch.bfloat16, "the caller's autocast policy has changed"
"""


def run(folder: Path, body: str, *, width: int = 512) -> dict[str, Any]:
    (folder / "script.py").write_text(SCRIPT.format(width=width) + body + CHECK + "print(json.dumps(found))\n")
    ended = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


PLANNED = """
found = {
    "estimate": memplan.estimate(workload, recipe=recipe, device="rtx-3090").to_dict(),
    "plan": memplan.plan(workload, "rtx-3090", 0.8, 0.6, precision="fp32").to_dict(),
}
"""


@pytest.mark.slow
def test_a_card_that_is_not_there_is_estimated_to_the_byte_and_planned_for_from_one_sample_on(tmp_path: Path) -> None:
    estimate, plan = run(tmp_path, PLANNED).values()
    breakdown = estimate["breakdown"]
    assert (breakdown["parameters"], breakdown["optimizer_state"]) == (2**20, 2 * 2**20)
    assert sum(breakdown.values()) == estimate["peak_process_bytes"]
    assert estimate["device_name"] == "rtx-3090"
    assert plan["current"]["micro_batch_size"] == 1
    assert plan["recipe"]["micro_batch_size"] > 1
    assert plan["estimate"]["peak_process_bytes"] <= 0.8 * plan["device_total_bytes"]


@pytest.mark.slow
def test_a_probe_returns_a_micro_batch_that_was_tried_and_lies_in_the_band(tmp_path: Path) -> None:
    budget = cpu_budget(640)
    asked = f"device='cpu', budget={budget.total_bytes}, max_util=0.8, min_util={budget.min_util}"
    body = f"found = memplan.probe(workload, recipe, {asked}).to_dict()\n"
    found = run(tmp_path, body, width=32)  # as much memory as of 512, for less computing
    best = found["best"]
    assert budget.min_util <= best["outcome"]["measurement"]["peak_device_bytes"] / budget.total_bytes <= 0.8
    assert best["recipe"] in [trial["recipe"] for trial in found["trials"]]


@pytest.mark.slow
def test_data_that_a_workload_captures_count_once(
    kept_templates: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    images = torch.ones(64 << 20)  # 256 MiB, of which a sample takes 4

    def probed_bytes(batch: Callable[[int], torch.Tensor]) -> int:
        workload = memplan.Workload(
            model=lambda: nn.Sequential(nn.Linear(32, 32, bias=False), nn.ReLU()),
            batch=batch,
            loss=lambda model, batch: model(batch).mean(),
            optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        )
        recipe = memplan.Recipe(micro_batch_size=2, precision="fp32")
        (trial, *_) = memplan.probe(workload, recipe, device="cpu", budget="4GiB", max_batch=2, min_util=0.0).trials
        measured = trial.outcome.measurement
        assert measured is not None
        return measured.peak_process_bytes

    without = probed_bytes(lambda size: torch.ones(size, 2**15, 32))
    captured = probed_bytes(lambda size: images[: size << 20].view(size, 2**15, 32))
    assert 0.5 < (captured - without) / (256 * MIB) < 1.5  # the heap varies by a tenth of it
