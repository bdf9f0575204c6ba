"""Arguments and the DeepSpeed file they name change together, and "auto" stays."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from memplan.configs import RecipeChange, apply_patch, plan_patch, read_config, undo_patch
from memplan.errors import ConfigError, OutputError
from memplan.recipe import Recipe

pytestmark = pytest.mark.usefixtures("memplans_reader_alone")

ARGUMENTS = """\
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
learning_rate: 2.0e-4
max_steps: 1000
fp16: true
output_dir: out
deepspeed: ds.json
"""
DEEPSPEED = """\
{
  "train_batch_size": 64,
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": "auto",
  "fp16": {"enabled": true, "initial_scale_power": 16},
  "bf16": {"enabled": "auto"},
  "optimizer": {"type": "AdamW", "params": {"lr": 0.0002, "weight_decay": "auto"}},
  "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 1000, "warmup_num_steps": "auto"}}
}
"""
CHANGE = RecipeChange(
    recipe=Recipe(micro_batch_size=16, accumulation_steps=2, precision="bf16", learning_rate=8e-4, world_size=1),
    iteration_factor=Fraction(1, 4),
    optimizer_step_factor=Fraction(1, 4),
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "x.yaml").write_text(ARGUMENTS)
    (tmp_path / "ds.json").write_text(DEEPSPEED)
    return tmp_path


def texts(folder: Path) -> dict[str, str]:
    return {each.name: each.read_text() for each in folder.iterdir()}


def test_both_files_change_and_what_is_auto_stays(project: Path) -> None:
    patch = plan_patch(read_config(project / "x.yaml"), CHANGE)
    assert [Path(each.path).name for each in patch.files] == ["x.yaml", "ds.json", "ds.json.memplan"]
    apply_patch(patch)
    expected = json.loads(DEEPSPEED)
    expected |= {"train_batch_size": 256, "train_micro_batch_size_per_gpu": 16}
    expected["fp16"]["enabled"] = False
    expected["optimizer"]["params"]["lr"] = 8e-4
    expected["scheduler"]["params"]["total_num_steps"] = 250
    assert json.loads((project / "ds.json").read_text()) == expected
    assert read_config(project / "x.yaml").recipe == CHANGE.recipe


def test_the_change_is_undone_in_all_files(project: Path) -> None:
    before = texts(project)
    patch = plan_patch(read_config(project / "x.yaml"), CHANGE)
    apply_patch(patch)
    undo_patch(patch)
    assert texts(project) == before


def test_a_second_run_on_both_patched_files_changes_nothing(project: Path) -> None:
    apply_patch(plan_patch(read_config(project / "x.yaml"), CHANGE))
    again = plan_patch(read_config(project / "x.yaml"), CHANGE)
    assert (again.diff, again.changes) == ("", ())


def test_where_one_file_cannot_be_written_none_is(project: Path) -> None:
    patch = plan_patch(read_config(project / "x.yaml"), CHANGE)
    (project / "ds.json.memplan").mkdir()
    before = {each: each.read_bytes() for each in project.iterdir() if each.is_file()}
    with pytest.raises((OutputError, ConfigError)):
        apply_patch(patch)
    assert {each: each.read_bytes() for each in project.iterdir() if each.is_file()} == before


def test_a_command_line_cannot_say_what_lies_in_another_file(project: Path) -> None:
    assert plan_patch(read_config(project / "x.yaml"), CHANGE).override_line is None
    (project / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "train_batch_size": "auto"}')
    assert plan_patch(read_config(project / "x.yaml"), CHANGE).override_line is not None


def test_every_change_says_its_file(project: Path) -> None:
    changes = plan_patch(read_config(project / "x.yaml"), CHANGE).changes
    found = {(Path(each.path).name, each.key) for each in changes}
    assert {("x.yaml", "learning_rate"), ("ds.json", "optimizer.params.lr")} <= found


def test_batches_that_contradict_each_other_are_refused(project: Path) -> None:
    (project / "ds.json").write_text(DEEPSPEED.replace("64", "60"))
    with pytest.raises(ConfigError, match=r"ds.json: train_batch_size=60 is no multiple of the 8 samples"):
        read_config(project / "x.yaml")


def test_a_broken_deepspeed_file_is_named(project: Path) -> None:
    (project / "ds.json").write_text(DEEPSPEED[:40])
    with pytest.raises(ConfigError, match=r"ds.json:\d+: invalid JSON"):
        read_config(project / "x.yaml")


def test_a_file_that_leaves_all_to_the_arguments_is_said_to(project: Path) -> None:
    (project / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "train_batch_size": "auto"}')
    config = read_config(project / "x.yaml")
    assert config.companions == ()
    assert config.notes == ("ds.json is all 'auto', so it follows the arguments",)
