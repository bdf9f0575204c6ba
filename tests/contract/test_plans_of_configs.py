"""A config of every ecosystem that was patched for a plan is planned for again, and stays as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from memplan.configs import apply_patch
from memplan.errors import ConfigError
from memplan.planning.subject import Subject, subject_of_config
from memplan.planning.writing.patching import scale, write_patch
from memplan.plans import PlanRequest
from tests.contract.config_cases import EVERY_CASE, Case, read

if TYPE_CHECKING:
    from memplan.recipe import Recipe

pytestmark = pytest.mark.usefixtures("memplans_reader_alone")

REQUESTS = {
    "alone": PlanRequest(),
    "two replicas hold a batch": PlanRequest(world_size=2, global_batch_size=48),
}


def subject_at(path: Path, case: Case, request: PlanRequest) -> Subject:
    config = replace(read(case, path), workload_target="net:make")
    return subject_of_config(config, world_size=request.world_size)


def recommended(subject: Subject, request: PlanRequest) -> Recipe:
    """Twelve samples at a time, and the learning rate that goes with them."""
    steps = 1 if request.global_batch_size is None else request.global_batch_size // (12 * subject.current.world_size)
    wanted = replace(subject.current, micro_batch_size=12, accumulation_steps=steps)
    return scale(wanted, subject, request, "SGD").recipe


@EVERY_CASE
@pytest.mark.parametrize("request_name", REQUESTS)
def test_a_second_plan_starts_from_the_original_and_proposes_nothing(
    case: Case, request_name: str, tmp_path: Path
) -> None:
    asked = replace(REQUESTS[request_name], patch_style=case.style)
    try:
        subject = subject_at(case.write(tmp_path), case, asked)
    except ConfigError as refusal:
        assert "train_batch_size=4 cannot be shared by 2 replicas" in str(refusal)  # noqa: PT017 - of one case alone
        pytest.skip("it spells out a batch of all replicas that is one replica's")
    recipe = recommended(subject, asked)
    if subject.obstacle(recipe) is not None:
        pytest.skip("the ecosystem does not accumulate")
    patch = write_patch(recipe, subject, asked, why="seen")
    assert patch is not None
    apply_patch(patch)
    again = subject_at(Path(patch.files[0].path), case, asked)
    assert again.current == recipe
    assert recommended(again, asked) == recipe
    assert write_patch(recipe, again, asked, why="seen") is None
