"""Flat files of TrainingArguments and of the tools that share their keys."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
import yaml

from memplan.configs import RecipeChange, expressible, plan_patch, read_config
from memplan.configs.ecosystems.huggingface import DEFAULT_LEARNING_RATE
from memplan.recipe import Precision, Recipe
from tests.making import config_of, patched_text

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.usefixtures("memplans_reader_alone")

HEAD = "per_device_train_batch_size: 4\noutput_dir: out\n"


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("", Precision.FP32),
        ("bf16: true\ntf32: true\n", Precision.BF16),
        ("bf16: false\nfp16: true\n", Precision.FP16),
        ("tf32: true\n", Precision.TF32),
        ("bf16: auto\n", Precision.BF16),
    ],
)
def test_the_switches_give_the_precision(tmp_path: Path, text: str, precision: Precision) -> None:
    assert config_of(tmp_path, HEAD + text).recipe.precision is precision


@pytest.mark.parametrize(
    ("text", "precision", "said"),
    [
        ("", "bf16", "TrainingArguments refuse bf16 on the CPU without use_cpu"),
        ("use_cpu: false\n", "bf16", "TrainingArguments refuse bf16 on the CPU without use_cpu"),
        ("use_cpu: true\n", "bf16", None),
        ("use_cpu: true\n", "fp16", "a Trainer trains in fp32 where fp16 is asked for on the CPU"),
    ],
)
def test_half_precision_on_the_cpu_is_what_the_arguments_accept_and_a_trainer_runs(
    tmp_path: Path, text: str, precision: str, said: str | None
) -> None:
    config, recipe = config_of(tmp_path, HEAD + text), Recipe(micro_batch_size=4, precision=precision)
    assert expressible(config, recipe, on_cpu=True) == said
    assert expressible(config, recipe) is None


def test_what_the_config_already_trains_in_is_not_refused_on_the_cpu(tmp_path: Path) -> None:
    config = config_of(tmp_path, HEAD + "bf16: true\n")
    assert expressible(config, config.recipe, on_cpu=True) is None


def test_precisions_that_a_key_of_the_users_own_switches_are_left_to_their_program(tmp_path: Path) -> None:
    config = config_of(tmp_path, HEAD + "dtype: float32\n", knob_keys={"precision": "dtype"})
    assert expressible(config, Recipe(micro_batch_size=4, precision="bf16"), on_cpu=True) is None


def test_defaults_stand_where_the_file_is_silent(tmp_path: Path) -> None:
    recipe = config_of(tmp_path, HEAD).recipe
    assert recipe == Recipe(micro_batch_size=4, learning_rate=DEFAULT_LEARNING_RATE)


def test_a_rate_that_yaml_takes_for_text_is_not_rewritten_where_it_stays(tmp_path: Path) -> None:
    config = config_of(tmp_path, HEAD + "learning_rate: 1e-4\n")
    patch = plan_patch(config, RecipeChange(recipe=Recipe(micro_batch_size=8, learning_rate=1e-4)))
    assert [each.key for each in patch.changes] == ["per_device_train_batch_size"]
    changed = plan_patch(config, RecipeChange(recipe=Recipe(micro_batch_size=8, learning_rate=2e-4)))
    assert "learning_rate: 2.0e-4\n" in changed.files[0].patched_text


def test_missing_arguments_are_added_at_the_end(tmp_path: Path) -> None:
    config = config_of(tmp_path, HEAD)
    recipe = Recipe(micro_batch_size=4, accumulation_steps=2, precision="bf16", learning_rate=1e-4)
    text = patched_text(config, recipe)
    assert text.startswith(HEAD + "gradient_accumulation_steps: 2\nlearning_rate: 0.0001\nbf16: true\n# memplan: ")


def test_json_grows_in_its_own_layout(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{\n\t"output_dir": "a",\n\t"per_device_train_batch_size": 4}')
    change = RecipeChange(recipe=Recipe(micro_batch_size=8, precision="bf16", learning_rate=1e-4))
    text = patched_text(read_config(tmp_path / "x.json"), change)
    added = '\t"per_device_train_batch_size": 8,\n\t"learning_rate": 0.0001,\n\t"bf16": true}'
    assert text == '{\n\t"output_dir": "a",\n' + added
    assert json.loads(text)["bf16"] is True


def test_one_switch_goes_on_and_the_other_off(tmp_path: Path) -> None:
    config = config_of(tmp_path, HEAD + "fp16: True\nbf16: False\ntf32: true\n")
    recipe = Recipe(micro_batch_size=4, precision="bf16", learning_rate=DEFAULT_LEARNING_RATE)
    values = yaml.safe_load(patched_text(config, recipe))
    assert (values["fp16"], values["bf16"], values["tf32"]) == (False, True, True)


def test_steps_follow_the_global_batch_and_ratios_stay(tmp_path: Path) -> None:
    config = config_of(tmp_path, HEAD + "max_steps: 1000\nwarmup_steps: 0.1\nsave_steps: 100\neval_steps: -1\n")
    change = RecipeChange(
        recipe=Recipe(micro_batch_size=8, learning_rate=1e-4),
        iteration_factor=Fraction(1, 2),
        optimizer_step_factor=Fraction(1, 2),
    )
    values = yaml.safe_load(patched_text(config, change))
    assert (values["max_steps"], values["save_steps"], values["warmup_steps"], values["eval_steps"]) == (
        500,
        50,
        0.1,
        -1,
    )


CHECKPOINTED = RecipeChange(
    recipe=Recipe(micro_batch_size=4, activation_checkpointing=True, learning_rate=DEFAULT_LEARNING_RATE)
)


@pytest.mark.parametrize("name", ["gradient_checkpointing", "activation_checkpointing"])
def test_the_name_of_checkpointing_that_is_in_the_file_is_kept(tmp_path: Path, name: str) -> None:
    config = config_of(tmp_path, HEAD + f"{name}: false\n")
    assert patched_text(config, CHECKPOINTED).startswith(HEAD + f"{name}: true\n# memplan: ")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", "gradient_checkpointing"),
        ("gradient_checkpointing_kwargs: {}\n", "gradient_checkpointing"),
        ("activation_checkpointing_kwargs: {}\n", "activation_checkpointing"),
    ],
)
def test_checkpointing_is_added_where_the_file_does_not_say(tmp_path: Path, text: str, name: str) -> None:
    config = config_of(tmp_path, HEAD + text)
    assert expressible(config, CHECKPOINTED.recipe) is None
    assert patched_text(config, CHECKPOINTED).startswith(HEAD + text + f"{name}: true\n# memplan: ")
    assert read_config(tmp_path / "x.yaml").recipe.activation_checkpointing is False


@pytest.mark.parametrize(("interval", "expected"), [("eval_steps: 33\n", 48), ("logging_steps: 33\n", 48), ("", 50)])
def test_saving_stays_a_multiple_of_evaluating(tmp_path: Path, interval: str, expected: int) -> None:
    config = config_of(tmp_path, HEAD + f"load_best_model_at_end: true\nsave_steps: 99\n{interval}")
    change = RecipeChange(recipe=config.recipe, optimizer_step_factor=Fraction(1, 2))
    assert yaml.safe_load(patched_text(config, change))["save_steps"] == expected


def test_axolotl_and_deepspeed_are_understood(tmp_path: Path) -> None:
    text = (
        "base_model: n\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\nlearning_rate: 2e-4\ndeepspeed: d.json\n"
    )
    config = config_of(tmp_path, text)
    assert config.format_name == "axolotl"
    assert config.recipe == Recipe(micro_batch_size=2, accumulation_steps=4, learning_rate=2e-4)
    assert "what d.json sets" in config.notes[0]


def test_what_no_switch_says(tmp_path: Path) -> None:
    recipe = Recipe(micro_batch_size=4, precision="bf16-true")
    assert "no switch for bf16-true" in str(expressible(config_of(tmp_path, HEAD), recipe))
