"""Training scripts of the frameworks people use, unchanged, as trials on the CPU.

One sample is 1024 x 256 fp32 numbers, 1 MiB, and is kept three times for the backward pass.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from memplan.devices.resolving import resolve_device
from memplan.probe.launcher import run_trial
from memplan.probe.trials import TrialRequest
from memplan.recipe import Recipe
from memplan.results import Outcome, OutcomeKind
from memplan.units import GIB, MIB
from tests.cpu_budgets import beyond_cpu_build_bytes
from tests.making import command

SCRIPTS = Path(__file__).parent / "training_scripts"
OPTIONS = "--bs {micro_batch_size} --steps {steps} --accumulate {accumulation_steps}"


def needs(*modules: str) -> pytest.MarkDecorator:
    missing = [each for each in modules if importlib.util.find_spec(each) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {' and '.join(missing)}, which is not installed")


def ran(template: str, folder: Path, recipe: Recipe, *, steps: int = 4) -> Outcome:
    source = command(template, folder, steps=steps)
    budget_bytes = 2 * GIB + 3 * beyond_cpu_build_bytes()  # of two replicas and what starts them
    device = resolve_device("cpu", budget_bytes=budget_bytes)
    return run_trial(TrialRequest(source=source, recipe=recipe, device=device, budget_bytes=budget_bytes))


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [
        pytest.param("with_lightning.py", marks=needs("lightning")),
        pytest.param("with_transformers.py", marks=needs("transformers", "accelerate")),
        pytest.param("with_mmengine.py", marks=needs("mmengine", "cv2")),
    ],
)
def test_a_frameworks_script_is_counted_in_optimizer_steps_and_measured(script: str, tmp_path: Path) -> None:
    template = f"{sys.executable} {SCRIPTS / script} {OPTIONS}"
    outcome = ran(template, tmp_path, Recipe(micro_batch_size=32, accumulation_steps=2))
    assert outcome.kind is OutcomeKind.FITS, outcome.log_tail
    assert outcome.evidence.startswith("4 steps, ")
    assert outcome.notes == (), "as many passes and processes as were asked for"
    measured = outcome.measurement
    assert measured is not None
    assert measured.breakdown.parameters == measured.breakdown.gradients == 4 * (256 * 256 + 256 + 256 * 8 + 8)
    assert measured.breakdown.temporaries >= 2 * 32 * MIB, "the activations of 32 samples are seen"


@pytest.mark.slow
def test_replicas_under_torchrun_are_all_counted(tmp_path: Path) -> None:
    def replicated(count: int) -> Outcome:
        script = f"{SCRIPTS / 'with_replicas.py'} --bs {{micro_batch_size}}"
        template = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node {count} {script}"
        return ran(template, tmp_path, Recipe(micro_batch_size=8, world_size=count))

    one, two = replicated(1), replicated(2)
    assert (one.kind, two.kind) == (OutcomeKind.FITS, OutcomeKind.FITS), two.log_tail
    assert one.measurement is not None
    assert two.measurement is not None
    assert two.measurement.breakdown.parameters == 2 * one.measurement.breakdown.parameters
