"""DeepSpeed's JSON and accelerate's YAML."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from memplan.configs import RecipeChange, expressible, plan_patch
from memplan.errors import ConfigError
from memplan.recipe import Precision, Recipe
from tests.making import config_of, patched_text

if TYPE_CHECKING:
    from pathlib import Path

    from memplan.configs import UserConfig

MICRO, STEPS, TOTAL = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"
ACCELERATE = "compute_environment: LOCAL_MACHINE\nmixed_precision: 'no'\nnum_processes: 4\n"


def settings_of(folder: Path, values: dict[str, Any]) -> UserConfig:
    return config_of(folder, json.dumps(values, indent=2), name="x.json")


@pytest.mark.parametrize(
    ("values", "recipe"),
    [
        ({MICRO: 4}, Recipe(micro_batch_size=4)),
        ({TOTAL: 8}, Recipe(micro_batch_size=8)),
        ({TOTAL: 8, STEPS: 2}, Recipe(micro_batch_size=4, accumulation_steps=2)),
        ({TOTAL: 8, MICRO: 4}, Recipe(micro_batch_size=4, accumulation_steps=2)),
        ({TOTAL: 32, MICRO: 4, STEPS: 2}, Recipe(micro_batch_size=4, accumulation_steps=2, world_size=4)),
        ({MICRO: 4, TOTAL: "auto", STEPS: "auto"}, Recipe(micro_batch_size=4)),
        ({MICRO: 4, "bf16": {"enabled": True}}, Recipe(micro_batch_size=4, precision="bf16")),
    ],
)
def test_the_batch_sizes_complete_each_other(tmp_path: Path, values: dict[str, Any], recipe: Recipe) -> None:
    assert settings_of(tmp_path, values).recipe == recipe


def test_batch_sizes_that_contradict_each_other_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="train_batch_size=9 is no multiple of 4 samples times 2 steps"):
        settings_of(tmp_path, {TOTAL: 9, MICRO: 4, STEPS: 2})


def test_what_is_auto_stays_auto(tmp_path: Path) -> None:
    values = {MICRO: 4, TOTAL: "auto", STEPS: "auto", "optimizer": {"params": {"lr": "auto"}}}
    config = settings_of(tmp_path, values)
    assert config.recipe.learning_rate is None
    patch = plan_patch(config, RecipeChange(recipe=Recipe(micro_batch_size=8, accumulation_steps=2)))
    assert json.loads(patch.files[0].patched_text) == {**values, MICRO: 8}
    assert config.notes == (f"left to the training arguments: {STEPS}, {TOTAL}, optimizer.params.lr",)


def test_a_file_of_auto_sends_the_user_to_the_arguments(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set by the training arguments"):
        settings_of(tmp_path, {MICRO: "auto", "zero_optimization": {"stage": 2}})


def test_a_batch_size_that_is_given_with_an_automatic_one_counts(tmp_path: Path) -> None:
    config = config_of(tmp_path, json.dumps({MICRO: "auto", STEPS: 2}), name="x.json", micro_batch_size=8)
    assert config.recipe == Recipe(micro_batch_size=8, accumulation_steps=2)


def test_all_three_batch_sizes_agree_after_a_change(tmp_path: Path) -> None:
    config = settings_of(tmp_path, {TOTAL: 16, MICRO: 4, STEPS: 2})
    recipe = Recipe(micro_batch_size=8, accumulation_steps=3, world_size=2)
    values = json.loads(patched_text(config, recipe))
    assert (values[MICRO], values[STEPS], values[TOTAL]) == (8, 3, 48)


def test_a_batch_that_deepspeed_derives_is_left_to_it(tmp_path: Path) -> None:
    config = settings_of(tmp_path, {TOTAL: 16, STEPS: 1})
    values = json.loads(patched_text(config, Recipe(micro_batch_size=32)))
    assert values == {TOTAL: 32, STEPS: 1}


def test_a_section_that_is_missing_is_added_and_the_other_switched_off(tmp_path: Path) -> None:
    config = settings_of(tmp_path, {MICRO: 4, "fp16": {"enabled": True, "loss_scale": 0}})
    change = RecipeChange(recipe=Recipe(micro_batch_size=4, precision="bf16"))
    values = json.loads(patched_text(config, change))
    assert (values["fp16"], values["bf16"]) == ({"enabled": False, "loss_scale": 0}, {"enabled": True})


def test_an_automatic_precision_is_not_overruled(tmp_path: Path) -> None:
    config = settings_of(tmp_path, {MICRO: 4, "bf16": {"enabled": "auto"}})
    assert "bf16.enabled is 'auto'" in str(expressible(config, Recipe(micro_batch_size=4, precision="fp16")))


def test_the_arguments_name_what_their_deepspeed_file_says_itself(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({MICRO: "auto", STEPS: 4, "fp16": {"enabled": False}}))
    text = "per_device_train_batch_size: 4\noutput_dir: out\ndeepspeed: ds.json\n"
    assert config_of(tmp_path, text).notes == (f"ds.json sets {STEPS}, fp16.enabled: it is changed with this file",)


def test_an_accelerate_file_holds_no_batch_size(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="an accelerate config sets no batch size"):
        config_of(tmp_path, ACCELERATE)


def test_an_accelerate_file_says_precision_and_accumulation(tmp_path: Path) -> None:
    text = ACCELERATE + "batch: 4\ndeepspeed_config:\n  gradient_accumulation_steps: 2\n"
    config = config_of(tmp_path, text, knob_keys={"micro_batch_size": "batch"})
    assert config.format_name == "accelerate"
    assert config.recipe == Recipe(micro_batch_size=4, accumulation_steps=2)
    change = RecipeChange(recipe=Recipe(micro_batch_size=8, accumulation_steps=1, precision=Precision.BF16))
    text = patched_text(config, change)
    assert "mixed_precision: 'bf16'\n" in text
    assert "gradient_accumulation_steps: 1\n" in text


def test_an_accelerate_file_points_to_the_deepspeed_file_that_it_names(tmp_path: Path) -> None:
    text = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
    with pytest.raises(ConfigError, match=r"name ds.json, or the script's own config"):
        config_of(tmp_path, text)


def test_an_accelerate_file_without_a_precision_is_read(tmp_path: Path) -> None:
    config = config_of(
        tmp_path,
        "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2}\nbatch: 4\n",
        knob_keys={"micro_batch_size": "batch"},
    )
    assert config.recipe == Recipe(micro_batch_size=4)
