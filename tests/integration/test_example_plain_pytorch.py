"""The plain PyTorch example: the script as it is, and with its batch planned."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cpu_budgets import cpu_budget

pytest.importorskip("torch")
pytest.importorskip("skimage", reason="the photographs come with scikit-image")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "plain_pytorch"


@pytest.fixture(scope="module")
def script():
    """The example's train.py; another example's has the same name."""
    sys.path.insert(0, str(EXAMPLE))
    specification = importlib.util.spec_from_file_location("plain_pytorch_train", EXAMPLE / "train.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    yield module
    sys.path.remove(str(EXAMPLE))


@pytest.mark.parametrize("words", [[], ["--precision", "bf16"], ["--accumulation-steps", "2"]], ids=str)
def test_training_takes_the_steps_asked_for_with_finite_losses(script, words: list[str]) -> None:
    losses = script.train(script.parse(["--steps", "3", "--patch-size", "16", *words]), "cpu")
    assert len(losses) == 3
    assert all(map(math.isfinite, losses))


def test_the_workload_makes_batches_of_the_size_asked_for(script) -> None:
    workload = script.make_workload(16, 1e-3)
    noisy, clean = workload.batch(5)
    assert noisy.shape == clean.shape == (5, 1, 16, 16)
    assert workload.loss(workload.model(), (noisy, clean)).ndim == 0


@pytest.mark.slow
def test_the_script_is_planned_once_and_watched_each_time(tmp_path: Path) -> None:
    small = ("--budget", cpu_budget(600).text, "--patch-size", "16")
    first, again = (run(tmp_path, "--plan", *small, "--steps", steps) for steps in ("1", "2"))
    assert first.startswith("planned now: --batch-size")
    assert again.startswith("planned at 20")
    assert first.partition(": ")[2].splitlines()[0] == again.partition(": ")[2].splitlines()[0]
    report = subprocess.run(
        [sys.executable, "-m", "memplan", "report"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "Trainings with this plan, device peaks" in report.stdout


def run(folder: Path, *words: str) -> str:
    ended = subprocess.run(
        [sys.executable, str(EXAMPLE / "train.py"), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
