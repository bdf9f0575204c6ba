"""What is trained, by how many replicas, and from which learning rate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from torch import nn

from memplan.configs import read_config
from memplan.planning.subject import subject_of_config, subject_of_workload
from memplan.planning.writing.patching import scale
from memplan.plans import PlanRequest
from memplan.recipe import Recipe
from memplan.workload import Workload
from tests.making import config_of, reference

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


def make_anything(*_given: object) -> None:
    return None


def test_of_a_workload_the_modules_that_every_process_imports_for_it_are_known() -> None:
    own = Workload(model=nn.ReLU, batch=make_anything, loss=make_anything, optimizer=make_anything)
    subject = subject_of_workload(own, Recipe(micro_batch_size=1), ())
    assert subject.source.installed_modules == ()  # this file is a user's, and torch is loaded anyway
    of_package = replace(own, optimizer=pytest.approx)
    assert (
        "_pytest.python_api" in subject_of_workload(of_package, Recipe(micro_batch_size=1), ()).source.installed_modules
    )


def test_of_a_config_that_memplan_itself_makes_a_workload_of_its_own_module_is_known(tmp_path: Path) -> None:
    own = reference("memplan.integrations.mmengine:make_workload", tmp_path)
    assert own.installed_modules == ("memplan.integrations.mmengine",)
    assert reference("train:make_workload", tmp_path).installed_modules == ()
