"""What is left alone because it was planned before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from memplan.configs import apply_patch, plan_patch, read_config
from memplan.planning.present import is_settled
from memplan.planning.question import Question
from memplan.planning.subject import Subject
from memplan.plans import PlanRequest
from memplan.plans.changes import change_to
from memplan.recipe import Recipe
from memplan.recommend.band import Band
from memplan.units import MIB
from memplan.workload import PickledWorkload
from tests.making import BAND, CPU, trial

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = PickledWorkload(payload=b"", fingerprint="f", search_path=())


def test_a_config_that_memplan_never_patched_is_not_settled() -> None:
    subject = Subject(source=SOURCE, current=Recipe(micro_batch_size=4), config=None, label="net")
    assert not is_settled(trial(4, 700), Question(subject=subject, request=PlanRequest(), device=CPU, band=BAND))


@pytest.mark.parametrize(("free_then_mib", "settled"), [(1000, True), (1400, False)])
def test_the_band_of_a_patched_config_is_the_one_it_was_planned_for(
    free_then_mib: int, settled: bool, tmp_path: Path
) -> None:
    (tmp_path / "x.yaml").write_text("batch: 2\n")
    keys = {"micro_batch_size": "batch"}
    config = read_config(tmp_path / "x.yaml", knob_keys=keys)
    change = change_to(
        Recipe(micro_batch_size=4), config.recipe, PlanRequest(), why="seen", device_total_bytes=free_then_mib * MIB
    )
    apply_patch(plan_patch(config, change))
    again = read_config(tmp_path / "x.yaml", knob_keys=keys)
    subject = Subject(source=SOURCE, current=again.recipe, config=again, label="net")
    for free_now_mib in (800, 1000, 2000):
        band = Band(total_bytes=free_now_mib * MIB, min_utilisation=0.6, max_utilisation=0.8)
        question = Question(subject=subject, request=PlanRequest(), device=CPU, band=band)
        assert is_settled(trial(4, 700), question) is settled
