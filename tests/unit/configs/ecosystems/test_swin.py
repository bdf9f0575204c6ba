"""Swin Transformer's yacs configs: the script scales the rate itself, so no patch does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from memplan.configs import RecipeChange, expressible, plan_patch
from memplan.errors import ConfigError
from memplan.recipe import Precision, Recipe
from tests.making import config_of

if TYPE_CHECKING:
    from pathlib import Path


SWIN = """\
MODEL:
  TYPE: swin
DATA:
  BATCH_SIZE: 64  # per GPU
TRAIN:
  BASE_LR: 5.0e-4
  ACCUMULATION_STEPS: 0
AMP_ENABLE: False
"""


def test_the_rate_is_left_to_the_script(tmp_path: Path) -> None:
    config = config_of(tmp_path, SWIN)
    assert (config.format_name, config.recipe) == ("swin", Recipe(micro_batch_size=64))
    assert config.notes[0].startswith("the script scales TRAIN.BASE_LR with the global batch itself")
    wanted = Recipe(micro_batch_size=128, accumulation_steps=2, precision="fp16", learning_rate=1.0)
    patch = plan_patch(config, RecipeChange(recipe=wanted))
    assert {each.key: each.after for each in patch.changes} == {
        "DATA.BATCH_SIZE": "128",
        "TRAIN.ACCUMULATION_STEPS": "2",
        "AMP_ENABLE": "true",
    }
    assert patch.override_line == "--opts DATA.BATCH_SIZE 128 TRAIN.ACCUMULATION_STEPS 2 AMP_ENABLE True"


def test_autocast_is_on_unless_it_is_turned_off(tmp_path: Path) -> None:
    config = config_of(tmp_path, SWIN.replace("AMP_ENABLE: False\n", ""))
    assert config.recipe.precision is Precision.FP16
    assert "AMP_ENABLE is not set, which is fp16 by the script's default" in config.notes


def test_what_the_script_cannot_say(tmp_path: Path) -> None:
    config = config_of(tmp_path, SWIN)
    assert "no way to say bf16" in str(expressible(config, Recipe(micro_batch_size=64, precision="bf16")))
    with pytest.raises(ConfigError, match="must be a whole number"):
        config_of(tmp_path, SWIN.replace("64", "many"))
