"""torchtitan's TOML."""

from __future__ import annotations

import tomllib
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

import pytest

from memplan.configs import RecipeChange, expressible, plan_patch
from memplan.errors import ConfigError
from memplan.recipe import Precision, Recipe
from tests import making
from tests.making import patched_text

if TYPE_CHECKING:
    from pathlib import Path


TEXT = """\
# torchtitan Config.toml

[model]
name = "llama3"
flavor = "8B"

[optimizer]
name = "AdamW"
lr = 3e-4

[lr_scheduler]
warmup_steps = 200  # lr scheduler warm up

[training]
local_batch_size = 1
seq_len = 8192
max_norm = 1.0  # grad norm clipping
steps = 1000

[activation_checkpoint]
mode = "selective"  # ["none", "selective", "full"]
"""


config_of = partial(making.config_of, name="x.toml")


def test_the_recipe_is_read_with_torchtitans_defaults(tmp_path: Path) -> None:
    config = config_of(tmp_path, TEXT)
    assert config.format_name == "torchtitan"
    assert config.recipe == Recipe(micro_batch_size=1, learning_rate=3e-4, precision="bf16")


def test_accumulation_follows_from_the_global_batch(tmp_path: Path) -> None:
    text = TEXT.replace("steps = 1000", "steps = 1000\nglobal_batch_size = 32")
    text += "[parallelism]\ndata_parallel_shard_degree = 8\n"
    assert config_of(tmp_path, text).recipe.accumulation_steps == 4
    with pytest.raises(ConfigError, match="32 is no multiple of 3 samples on 8 replicas"):
        config_of(tmp_path, text.replace("local_batch_size = 1", "local_batch_size = 3"))


def test_batch_rate_and_steps_change_and_nothing_else(tmp_path: Path) -> None:
    recipe = Recipe(micro_batch_size=4, accumulation_steps=2, learning_rate=2.4e-3, precision="fp32")
    change = RecipeChange(recipe=recipe, optimizer_step_factor=Fraction(1, 8))
    patch = plan_patch(config_of(tmp_path, TEXT), change)
    expected = tomllib.loads(TEXT)
    expected["optimizer"]["lr"] = 2.4e-3
    expected["lr_scheduler"]["warmup_steps"] = 25
    expected["training"] |= {"local_batch_size": 4, "steps": 125, "global_batch_size": 8}
    expected["training"]["mixed_precision_param"] = "float32"
    assert tomllib.loads(patch.files[0].patched_text) == expected
    assert "--training.local_batch_size=4" in str(patch.override_line)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_in_half_precision_become_whole_for_any_other_one(tmp_path: Path, precision: str) -> None:
    config = config_of(tmp_path, TEXT.replace("steps = 1000", 'steps = 1000\ndtype = "bfloat16"'))
    assert config.recipe.precision is Precision.BF16_TRUE
    recipe = Recipe(micro_batch_size=1, learning_rate=3e-4, precision=precision)
    assert config_of(tmp_path, patched_text(config, recipe)).recipe == recipe


def test_what_torchtitan_has_no_word_for(tmp_path: Path) -> None:
    recipe = Recipe(micro_batch_size=1, learning_rate=3e-4, precision="fp16")
    assert "no word for fp16" in str(expressible(config_of(tmp_path, TEXT), recipe))
