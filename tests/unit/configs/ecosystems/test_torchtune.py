"""torchtune's recipe YAML."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
import yaml

from memplan.configs import RecipeChange, expressible, plan_patch
from memplan.errors import ConfigError
from memplan.recipe import Precision, Recipe
from tests.making import config_of

if TYPE_CHECKING:
    from pathlib import Path


TEXT = """\
tokenizer:
  max_seq_len: null
dataset:
  _component_: torchtune.datasets.alpaca_cleaned_dataset
  packed: False  # True increases speed
batch_size: 4
lr_scheduler:
  num_warmup_steps: 100
optimizer:
  _component_: torch.optim.AdamW
  lr: 3e-4
max_steps_per_epoch: null
gradient_accumulation_steps: 8  # Use to increase effective batch size
optimizer_in_bwd: False
enable_activation_checkpointing: True  # True reduces memory
dtype: bf16
"""


def test_the_type_of_the_whole_model_is_read_as_the_precision(tmp_path: Path) -> None:
    config = config_of(tmp_path, TEXT)
    assert config.format_name == "torchtune"
    assert config.recipe == Recipe(
        micro_batch_size=4,
        accumulation_steps=8,
        precision="bf16-true",
        learning_rate=3e-4,
        activation_checkpointing=True,
    )
    assert config.notes == ()


def test_a_type_that_memplan_does_not_know_is_not_taken_for_another(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dtype='fp64' is not a type memplan knows"):
        config_of(tmp_path, TEXT.replace("dtype: bf16", "dtype: fp64"))
    assert config_of(tmp_path, TEXT.replace("dtype: bf16", "")).recipe.precision is Precision.FP32


def test_autocast_is_what_it_has_no_word_for(tmp_path: Path) -> None:
    recipe = Recipe(micro_batch_size=4, accumulation_steps=8, precision="bf16", learning_rate=3e-4)
    assert "no word for bf16: dtype is the type of the weights" in str(expressible(config_of(tmp_path, TEXT), recipe))


def test_an_optimizer_in_the_backward_pass_excludes_accumulation(tmp_path: Path) -> None:
    text = TEXT.replace("in_bwd: False", "in_bwd: True").replace("steps: 8", "steps: 1")
    config = config_of(tmp_path, text)
    recipe = Recipe(micro_batch_size=2, accumulation_steps=2, precision="bf16-true", learning_rate=3e-4)
    assert expressible(config, recipe) == "optimizer_in_bwd excludes accumulation"


@pytest.mark.usefixtures("memplans_reader_alone")
def test_optimizer_steps_and_precision_change_and_a_length_of_whole_epochs_stays(tmp_path: Path) -> None:
    recipe = Recipe(micro_batch_size=8, accumulation_steps=8, precision="fp32", learning_rate=6e-4)
    patch = plan_patch(config_of(tmp_path, TEXT), RecipeChange(recipe=recipe, optimizer_step_factor=Fraction(1, 2)))
    expected = yaml.safe_load(TEXT)
    expected |= {"batch_size": 8, "dtype": "fp32", "enable_activation_checkpointing": False}
    expected["optimizer"]["lr"] = 6e-4
    expected["lr_scheduler"]["num_warmup_steps"] = 50
    assert yaml.safe_load(patch.files[0].patched_text) == expected
    assert "batch_size=8" in str(patch.override_line)
