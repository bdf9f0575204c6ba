"""What is left alone because it was planned before."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from memplan.configs import apply_patch, plan_patch, read_config
from memplan.devices.resolving import resolve_device
from memplan.planning.present import is_settled, notes_on_own_precision
from memplan.plans import PlanRequest
from memplan.plans.changes import change_to
from memplan.recipe import Precision, Recipe
from memplan.recommend.band import Band
from memplan.units import MIB
from tests.making import config_of, question, subject, trial

if TYPE_CHECKING:
    from pathlib import Path


AMP = (
    "train_dataloader = dict(batch_size=4)\n"
    "optim_wrapper = dict(type='AmpOptimWrapper', dtype='bfloat16', optimizer=dict(type='SGD', lr=0.01))\n"
)


def test_a_precision_of_the_config_that_its_programs_refuse_on_the_cpu_is_told(tmp_path: Path) -> None:
    config = config_of(tmp_path, AMP, name="x.py")
    asked = question(subject(config.recipe, config))
    note = "the config's own precision is left as it is, but mmengine does not train in bf16 on the CPU"
    assert notes_on_own_precision(asked, config.recipe) == (note,)
    assert notes_on_own_precision(asked, replace(config.recipe, precision=Precision.FP32)) == ()
    assert notes_on_own_precision(replace(asked, device=resolve_device("t4")), config.recipe) == ()


def test_a_config_that_memplan_never_patched_is_not_settled() -> None:
    assert not is_settled(trial(4, 700), question(subject(Recipe(micro_batch_size=4))))


@pytest.mark.parametrize(("free_then_mib", "settled"), [(1000, True), (1400, False)])
def test_the_band_of_a_patched_config_is_the_one_it_was_planned_for(
    free_then_mib: int, settled: bool, tmp_path: Path
) -> None:
    keys = {"micro_batch_size": "batch"}
    config = config_of(tmp_path, "batch: 2\n", knob_keys=keys)
    change = change_to(
        Recipe(micro_batch_size=4), config.recipe, PlanRequest(), why="seen", device_total_bytes=free_then_mib * MIB
    )
    apply_patch(plan_patch(config, change))
    again = read_config(config.path, knob_keys=keys)
    for free_now_mib in (800, 1000, 2000):
        band = Band(total_bytes=free_now_mib * MIB, min_utilisation=0.6, max_utilisation=0.8)
        assert is_settled(trial(4, 700), question(subject(again.recipe, again), band=band)) is settled
