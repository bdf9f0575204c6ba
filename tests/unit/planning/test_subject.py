"""What is trained, by how many replicas, and from which learning rate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.configs import read_config
from memplan.planning.subject import subject_of_config
from memplan.planning.writing.patching import scale
from memplan.plans import PlanRequest
from tests.making import config_of

if TYPE_CHECKING:
    from pathlib import Path


def test_a_config_that_does_not_say_for_how_many_replicas_it_is_is_for_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("batch_size: 4\nlr: 0.1\n")
    keys = {"micro_batch_size": "batch_size", "learning_rate": "lr"}
    subject = subject_of_config(read_config(tmp_path / "x.yaml", knob_keys=keys, workload_target="a:b"), world_size=8)
    assert subject.current.global_batch_size == 32
    scaled = scale(replace(subject.current, micro_batch_size=8), subject, PlanRequest(), "SGD").recipe
    assert scaled.learning_rate == 0.2  # from 32 to 64 samples


def test_a_rate_written_for_other_replicas_is_scaled_to_those_there_are(tmp_path: Path) -> None:
    subject = subject_of_config(
        config_of(
            tmp_path,
            '{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1,'
            ' "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}',
            name="x.json",
            workload_target="a:b",
        ),
        world_size=4,
    )
    assert subject.current.global_batch_size == 16
    assert scale(subject.current, subject, PlanRequest(), "SGD").recipe.learning_rate == 0.05  # written for 32 samples
    assert "replicas" in str(subject.unwritable)
