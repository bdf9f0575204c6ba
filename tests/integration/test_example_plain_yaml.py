"""The plain YAML example: its data, its training script and the knobs it declares."""

from __future__ import annotations

import math
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

torch = pytest.importorskip("torch")
pytest.importorskip("skimage", reason="the photographs come with scikit-image")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "plain_yaml"

sys.path.insert(0, str(EXAMPLE))
from textures import CLASSES, TexturePatches, make_workload  # noqa: E402
from train import train  # noqa: E402


def small_config(**training):
    config = yaml.safe_load((EXAMPLE / "config.yaml").read_text())
    config["data"] |= {"patch_size": 32, "batch_size": 6}
    config["model"]["width"] = 4
    config["training"] |= {"max_steps": 3, **training}
    return config


def test_every_declared_knob_names_a_key_of_the_config():
    knobs = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["memplan"]["knobs"]
    config = yaml.safe_load((EXAMPLE / "config.yaml").read_text())
    for key in ",".join(knobs.values()).split(","):
        section, _, name = key.strip().partition(".")
        assert name in config[section]


def test_the_learning_rate_is_a_number_and_not_text():
    assert yaml.safe_load((EXAMPLE / "config.yaml").read_text())["optimizer"]["lr"] == 1e-3


def test_patches_cover_all_classes():
    patches = TexturePatches(patch_size=16, length=6)
    assert [patches[index][1] for index in range(6)] == [0, 1, 2, 0, 1, 2]
    assert patches[5][0].shape == (1, 16, 16)
    assert len(CLASSES) == 3


@pytest.mark.parametrize(
    "training",
    [{}, {"use_amp": True, "amp_dtype": "bfloat16"}, {"use_amp": True}, {"accumulation_steps": 2}],
    ids=["fp32", "bf16", "fp16", "accumulation"],
)
def test_training_takes_the_steps_asked_for_with_finite_losses(training):
    losses = train(small_config(**training), "cpu")
    assert len(losses) == 3
    assert all(map(math.isfinite, losses))


def test_the_workload_makes_batches_of_the_size_asked_for():
    workload = make_workload(small_config())
    patches, labels = workload.batch(5)
    assert patches.shape == (5, 1, 32, 32)
    assert labels.tolist() == [0, 1, 2, 0, 1]
    assert workload.loss(workload.model(), (patches, labels)).ndim == 0
