"""What is asked for, and the digest by which an interrupted run is found again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from memplan.cards import DeviceKind, DeviceSpec
from memplan.configs import read_config
from memplan.errors import UsageError
from memplan.planning.patching import scale
from memplan.planning.request import Subject, subject_of_config
from memplan.plans import PlanRequest
from memplan.recipe import Recipe
from memplan.workload import WorkloadReference

if TYPE_CHECKING:
    from pathlib import Path

CPU = DeviceSpec(name="cpu", kind=DeviceKind.CPU, total_bytes=1)


def subject(folder: Path, **config: object) -> Subject:
    source = WorkloadReference(target="net:make", config=dict(config), config_path=None, search_path=(str(folder),))
    return Subject(source=source, current=Recipe(micro_batch_size=1), config=None, label="net")


def digest(of: Subject, request: PlanRequest | None = None) -> str:
    return of.fingerprint(request or PlanRequest(), CPU, {"torch": "2.13.0"})


def test_the_same_subject_and_wishes_have_the_same_digest(tmp_path: Path) -> None:
    assert digest(subject(tmp_path, a=1, b=2)) == digest(subject(tmp_path, b=2, a=1))


def test_config_wishes_recipe_and_code_each_change_the_digest(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("x = 1")
    plain = digest(subject(tmp_path, a=1))
    seen = {plain, digest(subject(tmp_path, a=2)), digest(subject(tmp_path, a=1), PlanRequest(max_utilisation=0.7))}
    seen.add(digest(replace(subject(tmp_path, a=1), current=Recipe(micro_batch_size=2))))
    (tmp_path / "layers.py").write_text("the workload's neighbour, which it imports")
    seen.add(digest(subject(tmp_path, a=1)))
    assert len(seen) == 5


def test_a_config_with_keys_of_several_types_has_a_digest(tmp_path: Path) -> None:
    assert digest(subject(tmp_path, palette={0: "road", "ignore": 255}))


@pytest.mark.parametrize("wish", [{"budget_bytes": 0}, {"budget_bytes": -5}, {"global_batch_size": 0}])
def test_a_wish_out_of_range_is_refused(wish: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="must be at least 1"):
        PlanRequest(**wish)


def test_a_config_that_does_not_say_for_how_many_replicas_it_is_is_for_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("batch_size: 4\nlr: 0.1\n")
    keys = {"micro_batch_size": "batch_size", "learning_rate": "lr"}
    subject = subject_of_config(read_config(tmp_path / "x.yaml", knob_keys=keys, workload_target="a:b"), world_size=8)
    assert subject.current.global_batch_size == 32
    scaled = scale(replace(subject.current, micro_batch_size=8), subject, PlanRequest(), "SGD").recipe
    assert scaled.learning_rate == 0.2  # from 32 to 64 samples


def test_a_rate_written_for_other_replicas_is_scaled_to_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(
        '{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1,'
        ' "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}'
    )
    subject = subject_of_config(read_config(tmp_path / "x.json", workload_target="a:b"), world_size=4)
    assert subject.current.global_batch_size == 16
    assert scale(subject.current, subject, PlanRequest(), "SGD").recipe.learning_rate == 0.05  # written for 32 samples
    assert "replicas" in str(subject.unwritable)


def test_a_number_of_replicas_below_one_is_refused() -> None:
    with pytest.raises(UsageError, match="world-size 0 must be at least 1"):
        PlanRequest(world_size=0)
