"""Interpolations: what a workload function is handed, and where a value that refers to another is written."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

from memplan.configs import PatchStyle, RecipeChange, plan_patch
from memplan.configs.keys import followed
from memplan.configs.languages.interpolations import resolved
from memplan.configs.workloads import ConfigNode
from memplan.recipe import Recipe
from tests.making import config_of

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

HAS_OMEGACONF = importlib.util.find_spec("omegaconf") is not None
TREE: dict[str, Any] = {
    "name": "run-${data.batch_size}-${model.width}",
    "data": {"batch_size": 4, "val": {"batch_size": "${..batch_size}", "again": "${.batch_size}"}},
    "model": {"width": "${width}", "head": "${data.val}", "sizes": [1, "${data.batch_size}"]},
    "width": 32,
    "indirect": "${model.sizes[1]}",
    "chosen": "${model.${which}}",
    "which": "width",
    "home": "${oc.env:MEMPLAN_TEST_HOME,none}",
    "root": "${oc.env:MEMPLAN_TEST_ROOT}/data",
}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMPLAN_TEST_ROOT", "/srv")
    monkeypatch.delenv("MEMPLAN_TEST_HOME", raising=False)


def test_every_reference_is_filled_in_and_keeps_its_type() -> None:
    values = resolved(TREE)
    assert values["name"] == "run-4-32"
    assert values["data"]["val"] == {"batch_size": 4, "again": 4}
    assert values["model"] == {"width": 32, "head": {"batch_size": 4, "again": 4}, "sizes": [1, 4]}
    assert (values["indirect"], values["chosen"]) == (4, 32)
    assert (values["home"], values["root"]) == ("none", "/srv/data")


@pytest.mark.skipif(not HAS_OMEGACONF, reason="omegaconf is not installed")
def test_omegaconf_fills_in_the_same() -> None:
    omegaconf = pytest.importorskip("omegaconf").OmegaConf
    assert omegaconf.to_container(omegaconf.create(TREE), resolve=True) == resolved(TREE)


@pytest.mark.parametrize("text", ["${gone}", "${now:%Y}", "a ${hydra.job.name} b", "${oc.env:MEMPLAN_TEST_HOME}", "${"])
def test_what_cannot_be_worked_out_stays_as_it_is_written(text: str) -> None:
    assert resolved({"a": text}) == {"a": text}


def test_a_circle_ends() -> None:
    assert "${" in resolved({"a": "${b}", "b": "${a}"})["a"]


def test_a_reference_is_followed_to_the_key_that_holds_the_value() -> None:
    assert followed(TREE, "data.val.again") == "data.batch_size"
    assert followed(TREE, "indirect") == "data.batch_size"
    assert followed(TREE, "root") == "root"


CONFIG = """\
general: {gpus: 1, batch: 4}
data:
  batch_size: ${general.batch}
  val: {batch_size: "${..batch_size}"}
optimizer: {lr: 1.0e-3}
memplan: {workload: "here:make"}
"""


def test_the_workload_function_gets_the_values_and_the_patch_goes_to_the_source(tmp_path: Path) -> None:
    config = config_of(tmp_path, CONFIG)
    handed = ConfigNode(config.workload.config)
    assert (handed.data.batch_size, handed.data.val.batch_size) == (4, 4)
    assert config.values["data"]["batch_size"] == "${general.batch}"
    change = RecipeChange(recipe=Recipe(micro_batch_size=8, learning_rate=1e-3))
    assert "gpus: 1, batch: 8}" in plan_patch(config, change, style=PatchStyle.IN_PLACE).diff


def test_a_batch_size_from_the_environment_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMPLAN_TEST_HOME", "6")
    text = CONFIG.replace("${general.batch}", "${oc.decode:${oc.env:MEMPLAN_TEST_HOME,4}}")
    config = config_of(tmp_path, text)
    assert config.recipe.micro_batch_size == config.workload.config["data"]["batch_size"] == 6


MMENGINE = """\
_base_ = './base.py'
work_dir = 'work_dirs/{{ fileBasenameNoExtension }}'
data_root = '{{$MEMPLAN_TEST_ROOT:/nowhere}}'
other_root = '{{$MEMPLAN_TEST_HOME:/nowhere}}'
val = dict(batch_size={{_base_.train_dataloader.batch_size}})
"""


def test_placeholders_of_openmmlab_are_filled_in_too(tmp_path: Path) -> None:
    base = "train_dataloader = dict(batch_size=4)\noptim_wrapper = dict(optimizer=dict(lr=0.1))\n"
    (tmp_path / "base.py").write_text(base, encoding="utf-8")
    handed = ConfigNode(config_of(tmp_path, MMENGINE, name="leaf.py", workload_target="here:make").workload.config)
    assert handed.work_dir == "work_dirs/leaf"
    assert (handed.data_root, handed.other_root) == ("/srv", "/nowhere")
    assert handed.val.batch_size == 4


@pytest.mark.parametrize(
    "values",
    [
        {"a": "${a}"},
        {"a": "${a}:x"},
        {"a": "${b}-${b}", "b": "${c}-${c}", "c": "${a}-${a}"},
        {"a": {"b": "${a}"}},
    ],
)
def test_a_value_that_asks_for_itself_is_left_as_text(values: dict[str, Any]) -> None:
    assert "${" in str(resolved(values))
