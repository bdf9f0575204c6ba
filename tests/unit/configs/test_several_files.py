"""Several files named together: laid over one another as LightningCLI does, or a DeepSpeed file beside arguments."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from memplan.configs import PatchStyle, RecipeChange, UserConfig, apply_patch, plan_patch, read_config
from memplan.errors import ConfigError, PatchError
from memplan.recipe import Recipe

if TYPE_CHECKING:
    from pathlib import Path

BASE = """\
trainer:
  max_epochs: 3
  callbacks: [{class_path: net.Bar}, {class_path: net.Line}]
data:
  class_path: net.Data
  init_args: {batch_size: 4, num_workers: 2}
model:
  class_path: net.Net
  init_args: {lr: 0.1}
"""
EXPERIMENT = """\
trainer:
  callbacks: [{class_path: net.Bar}]
data:
  init_args: {batch_size: 16}
"""
CHANGE = RecipeChange(recipe=Recipe(micro_batch_size=32, learning_rate=0.2))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "base.yaml").write_text(BASE, encoding="utf-8")
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "wide.yaml").write_text(EXPERIMENT, encoding="utf-8")
    return tmp_path


def read(project: Path, *more: str) -> UserConfig:
    return read_config(project / "base.yaml", project / "exp" / "wide.yaml", *(project / each for each in more))


def test_the_later_file_wins_and_lists_are_replaced_whole(project: Path) -> None:
    config = read(project)
    assert config.format_name == "lightning-cli"
    assert config.recipe == Recipe(micro_batch_size=16, learning_rate=0.1)
    assert config.values["trainer"] == {"max_epochs": 3, "callbacks": [{"class_path": "net.Bar"}]}
    assert config.values["data"]["init_args"] == {"batch_size": 16, "num_workers": 2}
    assert config.file_names == ("base.yaml", "wide.yaml")


def test_a_section_that_one_file_removes_is_not_brought_back_by_an_earlier_one(project: Path) -> None:
    (project / "none.yaml").write_text("model: null\n", encoding="utf-8")
    (project / "new.yaml").write_text("model: {class_path: net.Small}\n", encoding="utf-8")
    assert read(project, "none.yaml", "new.yaml").values["model"] == {"class_path": "net.Small"}


def test_the_overlay_comes_last_and_says_the_whole_command(project: Path) -> None:
    patch = plan_patch(read(project), CHANGE)
    assert [each.path for each in patch.files] == [str(project / "exp" / "wide_memplan.yaml")]
    assert patch.notes == ("use it as --config ../base.yaml --config wide.yaml --config wide_memplan.yaml",)
    assert "base" not in str(patch.override_line)


@pytest.mark.parametrize("named", [("exp/wide_memplan.yaml",), ("base.yaml", "exp/wide.yaml", "exp/wide_memplan.yaml")])
def test_the_patched_config_is_read_alone_as_with_all_that_is_before_it(project: Path, named: tuple[str, ...]) -> None:
    before = read(project)
    apply_patch(plan_patch(before, CHANGE))
    patched = read_config(*(project / each for each in named))
    assert patched.recipe == CHANGE.recipe
    assert patched.original is not None
    assert patched.original.recipe == before.recipe
    assert plan_patch(patched, CHANGE).changes == ()
    back = RecipeChange(recipe=before.recipe)
    apply_patch(plan_patch(patched, back))
    assert read_config(*(project / each for each in named)).values == before.values


def test_in_place_only_the_last_file_is_edited(project: Path) -> None:
    config = read(project)
    with pytest.raises(PatchError, match=r"model\.init_args\.lr cannot be edited in place: it is inherited"):
        plan_patch(config, CHANGE, style=PatchStyle.IN_PLACE)
    recipe = Recipe(micro_batch_size=32, learning_rate=0.1)
    apply_patch(plan_patch(config, RecipeChange(recipe=recipe), style=PatchStyle.IN_PLACE))
    assert (project / "base.yaml").read_text(encoding="utf-8") == BASE
    assert read(project).recipe == recipe


def test_another_class_is_pointed_out(project: Path) -> None:
    (project / "other.yaml").write_text("model: {class_path: net.Other}\n", encoding="utf-8")
    assert (
        "other.yaml changes model.class_path: the old class's init_args may not apply"
        in read(project, "other.yaml").notes
    )


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("base.yaml", None, "it is laid over itself"),
        ("list.yaml", "- 1\n", "does not hold keys and values at its top"),
        ("x.py", "batch_size = 4\n", "plain-python configs are not laid over one another"),
        ("ds.json", '{"train_micro_batch_size_per_gpu": 4}', "deepspeed files do not go with lightning-cli configs"),
        ("missing.yaml", None, "there is no such file"),
    ],
)
def test_files_that_do_not_go_together(project: Path, name: str, text: str | None, problem: str) -> None:
    if text is not None:
        (project / name).write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=problem):
        read(project, name)
    with pytest.raises(ConfigError, match=problem):
        read_config(project / name, project / "base.yaml", project / "exp" / "wide.yaml", project / name)


def test_two_files_of_arguments_are_not_one_config(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text("per_device_train_batch_size: 4\noutput_dir: out\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="huggingface configs are not laid over one another; name one config"):
        read_config(tmp_path / "a.yaml", tmp_path / "b.yaml")


def test_a_deepspeed_file_named_beside_arguments_changes_with_them(tmp_path: Path) -> None:
    (tmp_path / "args.yaml").write_text("per_device_train_batch_size: 4\noutput_dir: out\n", encoding="utf-8")
    (tmp_path / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 4}', encoding="utf-8")
    for names in (("args.yaml", "ds.json"), ("ds.json", "args.yaml")):
        config = read_config(*(tmp_path / each for each in names))
        assert config.path.name == "args.yaml"
        patch = plan_patch(config, RecipeChange(recipe=Recipe(micro_batch_size=8, learning_rate=5e-5)))
        texts = {each.path: each.patched_text for each in patch.files}
        assert json.loads(texts[str(tmp_path / "ds.json")])["train_micro_batch_size_per_gpu"] == 8
        assert "per_device_train_batch_size: 8" in texts[str(tmp_path / "args.yaml")]
