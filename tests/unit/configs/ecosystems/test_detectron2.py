"""detectron2's yacs configs."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from memplan.configs import PatchStyle, RecipeChange, apply_patch, expressible, plan_patch, read_config
from memplan.errors import ConfigError
from memplan.recipe import Recipe
from tests.making import config_of, patched_text

if TYPE_CHECKING:
    from pathlib import Path


HALVED = RecipeChange(recipe=Recipe(micro_batch_size=8, learning_rate=0.02), iteration_factor=Fraction(1, 2))


def test_a_tuple_keeps_its_form_where_it_is_written(tmp_path: Path) -> None:
    text = "SOLVER:\n  IMS_PER_BATCH: 4\n  BASE_LR: 0.01\n  STEPS: (300, 400)  # drops\n"
    text += "  MAX_ITER: 500\n  WARMUP_ITERS: 0\n  CHECKPOINT_PERIOD: 100\n"
    patched = patched_text(config_of(tmp_path, text), HALVED, style=PatchStyle.IN_PLACE)
    assert "  STEPS: (150, 200)  # drops\n  MAX_ITER: 250\n  WARMUP_ITERS: 0\n  CHECKPOINT_PERIOD: 50\n" in patched


def test_lengths_left_to_the_defaults_are_scaled_from_those(tmp_path: Path) -> None:
    config = config_of(tmp_path, "SOLVER: {IMS_PER_BATCH: 4, BASE_LR: 0.01}\n")
    patch = plan_patch(config, HALVED)
    assert patch.files[0].patched_text.startswith("_BASE_: x.yaml\n# Changes to x.yaml, written by memplan.\nSOLVER:\n")
    changed = {each.key: (each.before, each.after) for each in patch.changes}
    assert changed["SOLVER.MAX_ITER"] == ("not set", "20000")
    assert changed["SOLVER.STEPS"] == ("not set", "'(15000,)'")
    assert changed["SOLVER.WARMUP_ITERS"] == ("not set", "500")
    assert "TEST.EVAL_PERIOD" not in changed
    apply_patch(patch)
    back = RecipeChange(recipe=config.recipe)
    apply_patch(plan_patch(read_config(tmp_path / "x_memplan.yaml"), back))
    assert read_config(tmp_path / "x_memplan.yaml").values == config.values


def test_the_options_say_the_same_without_a_file(tmp_path: Path) -> None:
    text = "SOLVER: {IMS_PER_BATCH: 4, BASE_LR: 0.01}\n"
    change = RecipeChange(recipe=Recipe(micro_batch_size=8, precision="fp16", learning_rate=0.02))
    options = "SOLVER.IMS_PER_BATCH 8 SOLVER.BASE_LR 0.02 SOLVER.AMP.ENABLED True"
    assert plan_patch(config_of(tmp_path, text), change).override_line == options


def test_the_reference_world_shares_the_batch(tmp_path: Path) -> None:
    text = "SOLVER: {IMS_PER_BATCH: 16, BASE_LR: 0.01, REFERENCE_WORLD_SIZE: 8}\n"
    config = config_of(tmp_path, text)
    assert config.recipe == Recipe(micro_batch_size=2, learning_rate=0.01, world_size=8)
    assert "rescales batch, rate and lengths itself" in config.notes[0]
    with pytest.raises(ConfigError, match="16 cannot be shared by 3 cards"):
        config_of(tmp_path, text.replace("8}", "3}"))


def test_what_the_trainer_cannot_do_is_said(tmp_path: Path) -> None:
    config = config_of(tmp_path, "SOLVER: {IMS_PER_BATCH: 4, BASE_LR: 0.01}\n")
    assert "does not accumulate" in str(expressible(config, Recipe(micro_batch_size=4, accumulation_steps=2)))
    assert "no way to say bf16" in str(expressible(config, Recipe(micro_batch_size=4, precision="bf16")))


def test_python_tags_are_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "made"
    tag = f"MODEL:\n  X: !!python/object/apply:os.mkdir ['{marker}']\n"
    config = config_of(tmp_path, tag + "SOLVER: {IMS_PER_BATCH: 4, BASE_LR: 0.01}\n")
    plan_patch(config, HALVED)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("base", "part"),
    [
        ("x.yaml", "it inherits from itself"),
        ("gone.yaml", "gone.yaml: there is no such file"),
        ("https://example.org/a.yaml", "is not a file of this machine"),
    ],
)
def test_a_base_that_cannot_be_read_is_named(tmp_path: Path, base: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        config_of(tmp_path, f"_BASE_: {base}\nSOLVER: {{IMS_PER_BATCH: 4}}\n")


def test_a_floor_that_yaml_reads_as_text_follows_the_rate(tmp_path: Path) -> None:
    config = config_of(tmp_path, "SOLVER: {IMS_PER_BATCH: 4, BASE_LR: 0.01, BASE_LR_END: 1e-6}\n")
    assert "BASE_LR_END: 2.0e-6" in patched_text(config, HALVED, style=PatchStyle.IN_PLACE)
