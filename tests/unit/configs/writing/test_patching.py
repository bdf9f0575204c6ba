"""Child configs, in-place edits, and what a patch refuses to do."""

from __future__ import annotations

import os
import stat
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from memplan.configs import PatchStyle, RecipeChange, apply_patch, plan_patch, read_config
from memplan.errors import ConfigError, PatchError
from memplan.recipe import Recipe
from tests.making import config_of, patched_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BASE = """\
data = dict(samples_per_gpu=2, workers_per_gpu=2)
optimizer = dict(type='AdamW', lr=2e-4)
optimizer_config = dict(grad_clip=dict(max_norm=35, norm_type=2))
lr_config = dict(policy='poly', warmup_iters=1500, min_lr=1e-6, by_epoch=False)
runner = dict(type='IterBasedRunner', max_iters=2000)
"""
LEAF = "_base_ = ['./base.py']\ndata = dict(samples_per_gpu=4)\nmemplan = dict(workload='net.workload:make')\n"
CHANGE = RecipeChange(
    recipe=Recipe(micro_batch_size=12, accumulation_steps=2, precision="fp16", learning_rate=1.2e-3),
    reasons={"micro_batch_size": "72 % of 24 GiB", "iterations": "global batch 4 to 24"},
    iteration_factor=Fraction(1, 3),
    options={"max_util": 0.8},
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "base.py").write_text(BASE)
    (tmp_path / "leaf.py").write_text(LEAF)
    return tmp_path


def test_a_child_config_reads_as_its_author_would_write_it(project: Path, golden: Callable[[str, str], None]) -> None:
    patch = plan_patch(read_config(project / "leaf.py"), CHANGE)
    golden("patches/openmmlab_child.diff", patch.diff)


def test_a_yaml_edit_touches_the_values_only(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    text = (
        "# depth\ndata:\n  batch_size: 4   # per GPU\n  num_workers: 2\n"
        "training: {use_amp: False, max_iters: 2000}\noptimizer:\n    lr: 1e-4"
    )
    (tmp_path / "x.yaml").write_text(text)
    knobs = {
        "micro_batch_size": "data.batch_size",
        "precision": "training.use_amp",
        "iterations": "training.max_iters",
        "learning_rate": "optimizer.lr",
    }
    change = RecipeChange(
        recipe=Recipe(micro_batch_size=12, precision="fp16", learning_rate=3e-4), iteration_factor=Fraction(1, 3)
    )
    patch = plan_patch(read_config(tmp_path / "x.yaml", knob_keys=knobs), change)
    golden("patches/plain_yaml.diff", patch.diff)


def test_the_marker_keeps_what_the_planner_stored(project: Path) -> None:
    apply_patch(plan_patch(read_config(project / "leaf.py"), CHANGE))
    original = read_config(project / "leaf_memplan.py").original
    assert original is not None
    assert original.options == {"max_util": 0.8}
    assert original.recipe.global_batch_size == 4
    assert original.values["runner.max_iters"] == 2000


def test_the_child_inherits_the_workload(project: Path) -> None:
    apply_patch(plan_patch(read_config(project / "leaf.py"), CHANGE))
    workload = read_config(project / "leaf_memplan.py").workload
    assert workload.target == "net.workload:make"
    assert workload.config["data"] == {"samples_per_gpu": 12, "workers_per_gpu": 2}
    assert workload.search_path[0] == str(project)


def test_no_line_but_the_marker_is_wider_than_120_columns(tmp_path: Path) -> None:
    linear = "dict(type='LinearLR', by_epoch=False, begin=0, end={}, start_factor=1.0, last_step=-1)"
    schedulers = ", ".join(linear.format(end) for end in (300, 400))
    long = [10 * n for n in range(1, 60)]
    (tmp_path / "x.py").write_text(
        "train_dataloader = dict(batch_size=4)\noptim_wrapper = dict(optimizer=dict(type='SGD', lr=0.1))\n"
        f"param_scheduler = [{schedulers}, dict(type='MultiStepLR', by_epoch=False, milestones={long})]\n"
    )
    change = RecipeChange(
        recipe=Recipe(micro_batch_size=8, learning_rate=0.2),
        reasons={"micro_batch_size": "a long reason " * 20, "iterations": "counted in iterations " * 9},
        iteration_factor=Fraction(1, 2),
    )
    *lines, marker = patched_text(read_config(tmp_path / "x.py"), change).splitlines()
    assert marker.startswith("# memplan: ")
    assert max(len(each) for each in lines) <= 120
    assert "    batch_size=8,  # was 4: a long reason a long" in "\n".join(lines)


def test_an_inherited_value_is_not_edited_in_place(project: Path) -> None:
    with pytest.raises(PatchError, match=r"optimizer.lr cannot be edited in place: it is inherited") as caught:
        plan_patch(read_config(project / "leaf.py"), CHANGE, style=PatchStyle.IN_PLACE)
    assert "child config" in str(caught.value.hint)


def test_a_second_plan_rewrites_the_child_instead_of_nesting(project: Path) -> None:
    apply_patch(plan_patch(read_config(project / "leaf.py"), CHANGE))
    change = RecipeChange(recipe=Recipe(micro_batch_size=8, learning_rate=4e-4), iteration_factor=Fraction(1, 2))
    patch = plan_patch(read_config(project / "leaf_memplan.py"), change)
    assert patch.files[0].path == str(project / "leaf_memplan.py")
    assert "optimizer_config =" not in patch.files[0].patched_text
    apply_patch(patch)
    values = read_config(project / "leaf_memplan.py").values
    assert values["runner"]["max_iters"] == 1000
    assert values["optimizer_config"] == {"grad_clip": {"max_norm": 35, "norm_type": 2}}


def test_a_child_edited_by_hand_is_not_overwritten(project: Path) -> None:
    apply_patch(plan_patch(read_config(project / "leaf.py"), CHANGE))
    child = project / "leaf_memplan.py"
    child.write_text(child.read_text() + "seed = 7\n")
    change = RecipeChange(recipe=Recipe(micro_batch_size=8, learning_rate=4e-4), iteration_factor=Fraction(1, 2))
    with pytest.raises(PatchError, match="seed"):
        plan_patch(read_config(child), change)


def test_a_file_that_is_not_memplans_is_not_overwritten(project: Path) -> None:
    (project / "leaf_memplan.py").write_text("a = 1\n")
    with pytest.raises(PatchError, match="not of memplan's making"):
        plan_patch(read_config(project / "leaf.py"), CHANGE)


def test_an_unchanged_recipe_gives_an_empty_patch(project: Path) -> None:
    config = read_config(project / "leaf.py")
    patch = plan_patch(config, RecipeChange(recipe=config.recipe))
    assert (patch.diff, patch.changes) == ("", ())
    apply_patch(patch)
    assert not (project / "leaf_memplan.py").exists()


def test_a_config_that_changed_since_it_was_read_is_not_patched(project: Path) -> None:
    config = read_config(project / "leaf.py")
    (project / "leaf.py").write_text(LEAF + "# new\n")
    with pytest.raises(PatchError, match="was changed since"):
        plan_patch(config, CHANGE)


def test_a_computed_value_gets_a_child_and_no_splice(tmp_path: Path) -> None:
    text = "total = 8\ngpus = 2\ndata = dict(samples_per_gpu=total // gpus)\noptimizer = dict(type='SGD', lr=0.1)\n"
    config = config_of(tmp_path, text, name="x.py")
    change = RecipeChange(recipe=Recipe(micro_batch_size=8, learning_rate=0.2))
    with pytest.raises(PatchError, match=r"x.py:3: data.samples_per_gpu cannot be edited in place: it is computed"):
        plan_patch(config, change, style=PatchStyle.IN_PLACE)
    assert "samples_per_gpu=8" in patched_text(config, change)


def test_an_edited_file_keeps_its_permissions_and_its_link(tmp_path: Path) -> None:
    real = tmp_path / "real.yaml"
    real.write_text("batch: 4\n")
    real.chmod(0o640)
    (tmp_path / "x.yaml").symlink_to(real)
    config = read_config(tmp_path / "x.yaml", knob_keys={"micro_batch_size": "batch"})
    apply_patch(plan_patch(config, RecipeChange(recipe=Recipe(micro_batch_size=8))))
    assert (tmp_path / "x.yaml").is_symlink()
    assert real.read_text().startswith("batch: 8\n")
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_folder_that_cannot_be_written_keeps_the_file(tmp_path: Path) -> None:
    config = config_of(tmp_path, "batch: 4\n", knob_keys={"micro_batch_size": "batch"})
    patch = plan_patch(config, RecipeChange(recipe=Recipe(micro_batch_size=8)))
    tmp_path.chmod(0o500)
    with pytest.raises(Exception, match="cannot be written"):
        apply_patch(patch)
    tmp_path.chmod(0o700)
    assert (tmp_path / "x.yaml").read_text() == "batch: 4\n"


def test_a_damaged_marker_is_named_with_its_line(project: Path) -> None:
    apply_patch(plan_patch(read_config(project / "leaf.py"), CHANGE))
    child = project / "leaf_memplan.py"
    child.write_text(child.read_text().replace('"version": 1, ', '"version: 1, '))
    with pytest.raises(ConfigError, match=r"leaf_memplan.py:24: the memplan comment cannot be read"):
        read_config(child)


def test_the_same_change_as_command_line_options_is_noted(tmp_path: Path) -> None:
    patch = plan_patch(
        config_of(tmp_path, "data = dict(samples_per_gpu=4)\n", name="x.py"),
        RecipeChange(recipe=Recipe(micro_batch_size=8)),
    )
    assert patch.override_line == "--cfg-options data.samples_per_gpu=8"


def test_a_block_of_text_that_the_file_ends_in_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("batch_size: 4\nprompt: |\n  a\n  b")
    change = RecipeChange(recipe=Recipe(micro_batch_size=8))
    with pytest.raises(PatchError, match="prompt is a block of text that the file ends in without a newline; end the"):
        plan_patch(read_config(tmp_path / "x.yaml"), change)
    assert (
        plan_patch(config_of(tmp_path, "batch_size: 4\nprompt: |-\n  a\n  b"), change)
        .files[0]
        .patched_text.startswith("batch_size: 8\n")
    )
