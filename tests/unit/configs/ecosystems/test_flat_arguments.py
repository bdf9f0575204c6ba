"""timm, Ultralytics, LLaMA-Factory and axolotl: flat files with rules of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from memplan.configs import expressible
from memplan.errors import ConfigError
from memplan.recipe import Precision, Recipe
from tests.making import config_of, patched_text

if TYPE_CHECKING:
    from pathlib import Path

    from memplan.configs import UserConfig

TIMM = "model: resnet50\nbatch_size: 4\nopt: sgd\nsched: cosine\n"
ULTRALYTICS = "batch: 16\nimgsz: 640\nlr0: 0.01\namp: false\n"
LLAMA_FACTORY = "stage: sft\ndo_train: true\nfinetuning_type: full\nper_device_train_batch_size: 4\n"
AXOLOTL = "base_model: net\nmicro_batch_size: 2\nlearning_rate: 0.1\n"


def patched(config: UserConfig, **recipe: Any) -> dict[str, Any]:
    text = patched_text(config, Recipe(**recipe))
    return dict(yaml.safe_load(text))


def test_timm_keeps_the_rate_that_it_chooses_itself(tmp_path: Path) -> None:
    config = config_of(tmp_path, TIMM + "lr_base: 0.1\nwarmup_lr: 1.0e-5\n")
    assert config.recipe.learning_rate is None
    assert "no learning rate is written" in config.notes[0]
    values = patched(config, micro_batch_size=8, accumulation_steps=2, learning_rate=0.4)
    assert (values.get("lr"), values["lr_base"], values["warmup_lr"]) == (None, 0.1, 1e-5)
    assert values["grad_accum_steps"] == 2


def test_timm_scales_a_rate_that_is_set_with_its_floor(tmp_path: Path) -> None:
    config = config_of(tmp_path, TIMM + "lr: 0.1\nmin_lr: 0.0\nwarmup_lr: 1.0e-5\n")
    values = patched(config, micro_batch_size=8, learning_rate=0.2)
    assert (values["lr"], values["min_lr"], values["warmup_lr"]) == (0.2, 0.0, 2e-5)


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("", Precision.FP32),
        ("amp: true\n", Precision.FP16),
        ("amp: true\namp_dtype: bfloat16\n", Precision.BF16),
        ("amp: false\namp_dtype: bfloat16\n", Precision.FP32),
    ],
)
def test_timm_names_its_autocast_type(tmp_path: Path, text: str, precision: Precision) -> None:
    config = config_of(tmp_path, TIMM + text)
    assert config.recipe.precision is precision
    wanted = Precision.FP16 if precision is Precision.BF16 else Precision.BF16
    values = patched(config, micro_batch_size=4, precision=wanted, activation_checkpointing=True)
    expected = {Precision.FP16: "float16", Precision.BF16: "bfloat16"}[wanted]
    assert (values["amp"], values["amp_dtype"], values["grad_checkpointing"]) == (True, expected, True)


@pytest.mark.parametrize(
    ("text", "recipe"),
    [
        ("", Recipe(micro_batch_size=16, accumulation_steps=4)),
        ("nbs: 32\n", Recipe(micro_batch_size=16, accumulation_steps=2)),
        ("device: 0,1\n", Recipe(micro_batch_size=8, accumulation_steps=4, world_size=2)),
        ("device: [0, 1, 2, 3]\n", Recipe(micro_batch_size=4, accumulation_steps=4, world_size=4)),
    ],
)
def test_ultralytics_shares_its_batch_and_derives_accumulation(tmp_path: Path, text: str, recipe: Recipe) -> None:
    assert config_of(tmp_path, ULTRALYTICS + text).recipe == recipe


@pytest.mark.parametrize(
    ("micro", "steps", "batch", "nominal"), [(32, 2, 32, None), (64, 1, 64, None), (24, 3, 24, None), (32, 1, 32, 32)]
)
def test_ultralytics_changes_nbs_only_where_it_must(
    tmp_path: Path, micro: int, steps: int, batch: int, nominal: int | None
) -> None:
    values = patched(config_of(tmp_path, ULTRALYTICS), micro_batch_size=micro, accumulation_steps=steps)
    assert (values["batch"], values.get("nbs"), values["lr0"]) == (batch, nominal, 0.01)


@pytest.mark.parametrize("batch", ["-1", "0.7"])
def test_a_batch_that_ultralytics_finds_itself_is_no_recipe(tmp_path: Path, batch: str) -> None:
    with pytest.raises(ConfigError, match=f"batch={batch} must be a whole number"):
        config_of(tmp_path, ULTRALYTICS.replace("16", batch))


def test_ultralytics_trains_in_single_precision_on_the_cpu(tmp_path: Path) -> None:
    config = config_of(tmp_path, ULTRALYTICS)
    said = {each: expressible(config, replace(config.recipe, precision=each), on_cpu=True) for each in ("fp32", "bf16")}
    assert said == {"fp32": None, "bf16": "Ultralytics trains in fp32 on the CPU, whatever amp says"}


def test_ultralytics_has_no_checkpointing(tmp_path: Path) -> None:
    recipe = Recipe(micro_batch_size=16, accumulation_steps=4, activation_checkpointing=True)
    assert "no activation checkpointing" in str(expressible(config_of(tmp_path, ULTRALYTICS), recipe))


def test_llama_factory_checkpoints_unless_told_otherwise(tmp_path: Path) -> None:
    config = config_of(tmp_path, LLAMA_FACTORY)
    assert config.format_name == "llama-factory"
    assert config.recipe.activation_checkpointing
    values = patched(config, micro_batch_size=4, learning_rate=5e-5, activation_checkpointing=False)
    assert values["disable_gradient_checkpointing"] is True


def test_axolotl_takes_the_product_or_the_steps_but_not_both(tmp_path: Path) -> None:
    by_product = config_of(tmp_path, AXOLOTL + "batch_size: 8\n")
    assert by_product.recipe.accumulation_steps == 4
    values = patched(by_product, micro_batch_size=4, accumulation_steps=3, learning_rate=0.1)
    assert (values["batch_size"], values.get("gradient_accumulation_steps")) == (12, None)
    by_steps = config_of(tmp_path, AXOLOTL + "gradient_accumulation_steps: 2\n")
    values = patched(by_steps, micro_batch_size=4, accumulation_steps=3, learning_rate=0.1)
    assert (values.get("batch_size"), values["gradient_accumulation_steps"]) == (None, 3)


def test_axolotl_names_what_else_depends_on_the_batch(tmp_path: Path) -> None:
    notes = config_of(tmp_path, AXOLOTL + "eval_batch_size: 2\nsample_packing: true\n").notes
    assert any("eval_batch_size" in each for each in notes)
    assert any("sample_packing" in each for each in notes)
    with pytest.raises(ConfigError, match="batch_size=3 is no multiple of micro_batch_size=2"):
        config_of(tmp_path, AXOLOTL + "batch_size: 3\n")


def test_a_nominal_batch_that_is_no_count_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nbs='x' must be a whole number"):
        config_of(tmp_path, ULTRALYTICS + "nbs: x\n")
