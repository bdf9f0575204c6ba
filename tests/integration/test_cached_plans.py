"""A question that was answered before gets the same answer, and a changed one does not."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.conftest import MAPS, memplan

if TYPE_CHECKING:
    from pathlib import Path

ASKED = ("--device", "24GiB", "--precision", "fp32", "--workload", "net:make_workload", *MAPS)


@pytest.mark.slow
def test_a_second_run_gives_the_stored_plan_until_the_model_changes(project: Path) -> None:
    first = memplan("probe", "config.yaml", *ASKED, "--json", cwd=project)
    again = memplan("probe", "config.yaml", *ASKED, cwd=project)
    assert first.document["plan"]["cached_from"] is None
    assert "Cached plan of 20" in again.out
    assert "Live trials" in again.out  # all of it, as usual
    assert f"+  batch_size: {first.document['plan']['recipe']['micro_batch_size']}" in again.out
    assert first.document["run_id"] in again.out

    net = project / "net.py"
    net.write_text(net.read_text().replace("torch.randn(micro_batch_size, 1024", "torch.randn(micro_batch_size, 2048"))
    changed = memplan("probe", "config.yaml", *ASKED, "--json", cwd=project)
    assert changed.document["plan"]["cached_from"] is None
    sizes = [each.document["plan"]["recipe"]["micro_batch_size"] for each in (first, changed)]
    assert sizes[1] < sizes[0]


SCRIPT = """
import sys
import torch
from torch import nn
import memplan

width = int(sys.argv[1])

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(width, width, bias=False), nn.ReLU())

workload = memplan.Workload(
    model=Net,
    batch=lambda b: torch.ones(b, 2048, width),
    loss=lambda model, batch: model(batch).mean(),
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
)
plan = memplan.plan(workload, recipe=memplan.Recipe(micro_batch_size=2), device="24GiB", precisions=["fp32"])
print("planned" if plan.cached_from is None else "cached", plan.recipe.micro_batch_size)
"""


@pytest.mark.slow
def test_a_workload_of_a_script_is_known_again_in_the_next_process(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    first, again = (run(tmp_path, "256") for _ in range(2))
    assert first.startswith("planned ")
    assert again == first.replace("planned", "cached")


def run(folder: Path, width: str) -> str:
    ended = subprocess.run(
        [sys.executable, "script.py", width], cwd=folder, capture_output=True, text=True, timeout=300, check=True
    )
    return ended.stdout
