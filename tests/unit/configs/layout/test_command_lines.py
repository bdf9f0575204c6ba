"""A change as words of the training command, in every ecosystem's own form."""

from __future__ import annotations

import shlex
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from memplan.configs import RecipeChange, plan_patch, read_config
from memplan.configs.assignments import Assignment
from memplan.configs.layout.command_lines import as_flags, as_pairs, cfg_options
from memplan.recipe import Recipe
from tests.making import config_of

if TYPE_CHECKING:
    from pathlib import Path

HF = "per_device_train_batch_size: 4\nlearning_rate: 2.0e-4\nbf16: false\n"
LLAMA_FACTORY = f"stage: sft\ndo_train: true\nfinetuning_type: lora\n{HF}"
AXOLOTL = "base_model: net\nmicro_batch_size: 4\nlearning_rate: 2.0e-4\ngradient_accumulation_steps: 2\nbf16: false\n"
TIMM = "batch_size: 4\nmodel: resnet50\nopt: sgd\nsched: cosine\nlr: 2.0e-4\n"
ULTRALYTICS = "task: detect\nbatch: 4\nimgsz: 640\namp: False\n"
DETECTRON2 = "SOLVER:\n  IMS_PER_BATCH: 4\n  BASE_LR: 2.0e-4\n  STEPS: (12, 14)\n"
HYDRA = "trainer: {precision: 32, devices: 1}\ndata: {batch_size: 4}\nlr: 2.0e-4\n"
MMENGINE = (
    "train_dataloader = dict(batch_size=4)\noptim_wrapper = dict(type='OptimWrapper', optimizer=dict(lr=2e-4))\n"
    "param_scheduler = [dict(type='MultiStepLR', by_epoch=False, milestones=[8, 12])]\n"
)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("x.yaml", HF, "--per_device_train_batch_size 8 --learning_rate 0.0004 --bf16 True"),
        (
            "x.yaml",
            LLAMA_FACTORY,
            "per_device_train_batch_size=8 learning_rate=0.0004 bf16=true disable_gradient_checkpointing=true",
        ),
        ("x.yaml", AXOLOTL, "--micro-batch-size 8 --gradient-accumulation-steps 1 --learning-rate 0.0004 --bf16 True"),
        ("x.yaml", TIMM, "--batch-size 8 --lr 0.0004 --amp-dtype bfloat16 --amp"),
        ("x.yaml", ULTRALYTICS, "batch=8 amp=bf16 nbs=8"),
        ("x.yaml", HYDRA, "++data.batch_size=8 ++lr=0.0004 ++trainer.precision=bf16"),
        (
            "x.py",
            MMENGINE,
            (
                "--cfg-options train_dataloader.batch_size=8 optim_wrapper.optimizer.lr=0.0004 "
                "param_scheduler.0.milestones='[4,6]' optim_wrapper.type=AmpOptimWrapper optim_wrapper.dtype=bfloat16"
            ),
        ),
    ],
)
def test_the_line_says_the_change_in_the_words_of_the_program(name: str, text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    change = RecipeChange(
        recipe=Recipe(micro_batch_size=8, precision="bf16", learning_rate=4e-4), iteration_factor=Fraction(1, 2)
    )
    assert plan_patch(read_config(tmp_path / name), change).override_line == words


def test_detectron2s_tuples_are_one_word_of_the_shell(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(DETECTRON2)
    change = RecipeChange(recipe=Recipe(micro_batch_size=8, learning_rate=4e-4), iteration_factor=Fraction(1, 2))
    line = plan_patch(read_config(tmp_path / "x.yaml"), change).override_line
    assert line is not None
    assert "SOLVER.STEPS (6,7)" in " ".join(shlex.split(line))


def test_what_a_program_can_only_switch_on_is_not_switched_off_by_a_line(tmp_path: Path) -> None:
    patch = plan_patch(config_of(tmp_path, f"{TIMM}amp: true\n"), RecipeChange(recipe=Recipe(micro_batch_size=8)))
    assert patch.override_line is None


def test_a_dict_is_no_word_of_a_command() -> None:
    assignments = [Assignment(key="a.b", value={"c": 1}, reason="because")]
    assert as_pairs(assignments) is None
    assert as_flags(assignments) is None
    assert cfg_options(assignments) is None


def test_numbers_keep_all_their_digits() -> None:
    assignments = [Assignment(key="lr", value=value, reason="") for value in (1e-4, 0.000123456789, 2e-12)]
    assert as_flags(assignments) == "--lr 0.0001 --lr 0.000123456789 --lr 2e-12"
