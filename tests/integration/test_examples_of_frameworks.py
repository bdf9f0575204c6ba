"""The examples of Lightning, Hugging Face and mmengine: planned, set and trained as a user would run them."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cpu_budgets import cpu_budget

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

# Runs an example unchanged, but for a look at the process before and after it is planned.
DRIVER = """
import random, runpy, sys
import numpy, torch
import memplan.integrations.{framework} as integration

def state():
    return [torch.get_rng_state().tolist(), random.getstate(), numpy.random.get_state()[1].tolist(),
            torch.cuda.is_initialized()]

def tune(*arguments, **options):
    before = state()
    found = planned(*arguments, **options)
    assert state() == before, "planning has changed the process"
    print("the process is as it was, planned are", found[1].recipe.micro_batch_size)
    return found

planned, integration.tune = integration.tune, tune
sys.argv, sys.path[0] = {argv!r}, "."
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One example, made small: its folder, the extra it needs, its words of the command, sizes in its script."""

    folder: str
    framework: str
    packages: tuple[str, ...]
    words: tuple[str, ...]
    sizes: tuple[tuple[str, str], ...] = ()


RUNS = (
    Example(
        folder="lightning_hydra",
        framework="lightning",
        packages=("lightning", "hydra"),
        words=(
            "train.py", "data.length=16384", "data.count=64", "model.width=4", "trainer.max_epochs=1",
            "memplan.precision=[fp32]", "memplan.budget={budget}",
        ),
    ),
    Example(
        folder="hf_causal_lm",
        framework="transformers",
        packages=("transformers", "accelerate"),
        words=("train.py", "--epochs", "1", "--samples", "64", "--precision", "fp32", "--budget", "{budget}"),
        sizes=(
            ("LONGEST = 512", "LONGEST = 128"),
            ("hidden_size=128", "hidden_size=32"),
            ("intermediate_size=384", "intermediate_size=96"),
            ("num_attention_heads=4", "num_attention_heads=1"),
        ),
    ),
    Example(
        folder="mmengine_classifier",
        framework="mmengine",
        packages=("mmengine",),
        words=(
            "train.py", "configs/shapenet.py", "--budget", "{budget}", "--cfg-options", "model.width=8",
            "train_dataloader.dataset.size=256", "train_cfg.max_iters=10",
        ),
    ),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("example", RUNS, ids=lambda example: example.folder)
def test_the_example_trains_with_the_batch_that_was_planned_for_it(example: Example, tmp_path: Path) -> None:
    for package in example.packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs memplan[{example.framework}]: there is no {package}")
    project = tmp_path / example.folder
    shutil.copytree(EXAMPLES / example.folder, project, ignore=shutil.ignore_patterns(".memplan", "work_dirs"))
    script = project / "train.py"
    for size, smaller in example.sizes:
        assert size in script.read_text()
        script.write_text(script.read_text().replace(size, smaller))
    words = [word.replace("{budget}", cpu_budget(768).text) for word in example.words]
    driver = DRIVER.format(framework=example.framework, argv=words)
    ended = subprocess.run(
        [sys.executable, "-c", driver], cwd=project, capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    planned = re.search(r"the process is as it was, planned are (\d+)", ended.stdout)
    assert re.search(r"It peaks at .*% of [0-9.]+ [GM]iB \(60% to 80% wanted\)", ended.stdout)
    trained = re.search(r"^batch (\d+).* loss (\d+\.\d+)", ended.stdout, re.MULTILINE)
    assert planned, ended.stdout
    assert trained, ended.stdout
    assert trained[1] == planned[1]
    assert (project / ".memplan").is_dir()
