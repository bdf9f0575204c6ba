"""The learning rate of a patch is held against the optimizer that the workload really makes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from memplan.configs import RecipeChange, plan_patch, read_config
from memplan.devices.cards import DeviceKind, DeviceSpec
from memplan.planning.subject import subject_of_config
from memplan.planning.writing.rate_check import with_proven_rate
from memplan.probe.launcher import run_trial, trial_template
from memplan.probe.trials import TrialRequest
from memplan.recipe import Recipe
from memplan.results import OutcomeKind
from memplan.units import GIB
from tests.making import config_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from memplan.children import Template
    from memplan.patches import ConfigPatch

CPU = DeviceSpec(name="cpu", kind=DeviceKind.CPU, total_bytes=2 * GIB)
CONFIG = """\
batch_size: 4
lr: 0.1
memplan: {workload: "net:make", knobs: {micro_batch_size: batch_size, learning_rate: lr}}
"""
MODULE = """\
import torch
from memplan import Workload

def make(config):
    return Workload(
        model=lambda: torch.nn.Linear(8, 1),
        batch=lambda size: torch.ones(size, 8),
        loss=lambda model, batch: model(batch).sum(),
        optimizer=lambda parameters: {optimizer},
    )
"""
ARGUMENTS = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=4)
parser.add_argument("--precision", default="fp32")
parser.add_argument("--lr", type=float, default=0.1)
parser.parse_args()
"""
HF_ARGUMENTS = "per_device_train_batch_size: 4\noutput_dir: out\nlearning_rate: 0.1\nlr: 0.1\n"
LAUNCHED = "accelerate launch --mixed_precision no train.py --batch_size 4 --lr 0.1\n"
LAUNCH = "distributed_type: 'NO'\nmixed_precision: 'no'\n"
GROUPS = "torch.optim.SGD([{'params': [each], 'lr': config.lr * (1 + i)} for i, each in enumerate(parameters)])"


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    with trial_template() as started:
        yield started


def proven(
    folder: Path, optimizer: str, template: Template, rate: float = 0.2
) -> tuple[ConfigPatch | None, str | None]:
    (folder / "net.py").write_text(MODULE.replace("{optimizer}", optimizer), encoding="utf-8")
    config = config_of(folder, CONFIG)
    recipe = replace(config.recipe, micro_batch_size=8, learning_rate=0.2)

    def write(wanted: Recipe) -> ConfigPatch:
        return plan_patch(config, RecipeChange(recipe=wanted))

    return with_proven_rate(write(recipe), recipe, subject_of_config(config), write, device=CPU, template=template)


def test_every_parameter_group_is_seen_to_follow(tmp_path: Path, template: Template) -> None:
    patch, remark = proven(tmp_path, GROUPS, template)
    assert patch is not None
    assert [each.key for each in patch.changes] == ["batch_size", "lr"]
    assert remark is not None
    assert "the learning rate goes from 0.2 to 0.4 (highest of 2 parameter groups)" in remark


def test_a_rate_that_the_code_scales_itself_is_not_scaled_twice(tmp_path: Path, template: Template) -> None:
    patch, remark = proven(tmp_path, "torch.optim.SGD(parameters, lr=config.lr * config.batch_size / 4)", template)
    assert patch is not None
    assert [each.key for each in patch.changes] == ["batch_size"]
    assert "scales the learning rate with the batch itself" in str(remark)


def test_a_rate_that_does_not_come_from_the_config_is_pointed_out(tmp_path: Path, template: Template) -> None:
    patch, remark = proven(tmp_path, "torch.optim.SGD(parameters, lr=0.3)", template)
    assert patch is not None
    assert [each.key for each in patch.changes] == ["batch_size", "lr"]
    assert remark is not None
    assert remark.startswith("the learning rate stays at 0.3, though the config's changes by a factor of 2: ")


@pytest.mark.parametrize(
    ("optimizer", "reason"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("torch.optim.SGD([])", "ValueError: optimizer got an empty parameter list"),
        ("__import__('os')._exit(7)", "the process that makes the optimizer ended with exit status 7"),
        (
            "torch.optim.SGD(list(map(lambda each: {'params': [each]}, parameters))[: 10 // config.batch_size])",
            "it has 2 parameter groups with a rate before the patch and 1 after",
        ),
    ],
)
def test_a_check_that_cannot_be_made_is_said_with_its_reason(
    tmp_path: Path, template: Template, optimizer: str, reason: str
) -> None:
    patch, remark = proven(tmp_path, optimizer, template)
    assert patch is not None
    assert [each.key for each in patch.changes] == ["batch_size", "lr"]
    assert remark == f"the patch's learning rate could not be checked against the optimizer: {reason}"


@pytest.mark.parametrize(
    ("files", "rates"),
    [
        ({"x.py": ARGUMENTS}, "goes from 0.1 to 0.2"),
        ({"x.yaml": HF_ARGUMENTS, "acc.yaml": LAUNCH}, "stays at 0.1"),
        ({"x.sh": LAUNCHED}, "goes from 0.1 to 0.2"),
    ],
)
def test_a_change_by_flags_or_only_beside_the_config_is_checked_too(
    tmp_path: Path, template: Template, files: dict[str, str], rates: str
) -> None:
    (tmp_path / "net.py").write_text(MODULE.replace("{optimizer}", "torch.optim.SGD(parameters, lr=config.lr)"))
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    config = read_config(*(tmp_path / name for name in files), workload_target="net:make")
    recipe = replace(config.recipe, precision="bf16", learning_rate=0.1 if "x.yaml" in files else 0.2)

    def write(wanted: Recipe) -> ConfigPatch:
        return plan_patch(config, RecipeChange(recipe=wanted))

    subject = subject_of_config(config)
    patch, remark = with_proven_rate(write(recipe), recipe, subject, write, device=CPU, template=template)
    assert patch is not None
    assert remark == f"checked: the learning rate {rates}, as the optimizer made from each config says"


def test_trials_and_rates_are_forked_from_one_process(tmp_path: Path, template: Template) -> None:
    proven(tmp_path, GROUPS, template)
    loaded = template._running
    source = read_config(tmp_path / "x.yaml").workload
    recipe = Recipe(micro_batch_size=4)
    outcome = run_trial(TrialRequest(source=source, recipe=recipe, device=CPU, budget_bytes=2 * GIB), template=template)
    assert outcome.kind is OutcomeKind.FITS
    assert template._running is loaded
