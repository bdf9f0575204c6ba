"""What changes with the batch, quantity by quantity and ecosystem by ecosystem: the table of ``recommend.scaling``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from memplan.configs import PatchStyle
from memplan.configs.keys import get
from memplan.planning.options import parse_rule
from memplan.plans.changes import change_to, patch_of, with_scaled_rate
from memplan.plans.request import PlanRequest
from memplan.recipe import Recipe
from tests.making import config_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("memplans_reader_alone")

HF = """\
per_device_train_batch_size: 4
learning_rate: 1.0e-3
max_steps: 1000
warmup_steps: 100
save_steps: 200
eval_steps: 0.1
logging_steps: 8
num_train_epochs: 3
warmup_ratio: 0.03
lr_scheduler_kwargs: {min_lr: 1.0e-5, num_cycles: 2}
"""
DETECTRON2 = """\
SOLVER:
  IMS_PER_BATCH: 4
  BASE_LR: 1.0e-3
  BASE_LR_END: 1.0e-5
  MAX_ITER: 1000
  WARMUP_ITERS: 100
  WARMUP_FACTOR: 0.001
  STEPS: (600, 800)
  CHECKPOINT_PERIOD: 200
TEST: {EVAL_PERIOD: 400}
"""
LIGHTNING = """\
data: {batch_size: 4}
optimizer: {lr: 1.0e-3}
scheduler: {max_lr: 1.0e-2, eta_min: 1.0e-5, pct_start: 0.3}
trainer:
  max_steps: 1000
  max_epochs: 12
  val_check_interval: 400
  limit_train_batches: 0.5
  log_every_n_steps: 50
"""
TIMM = """\
model: net
opt: sgd
sched: cosine
batch_size: 4
lr: 1.0e-3
min_lr: 1.0e-5
warmup_lr: 1.0e-6
epochs: 300
warmup_epochs: 5
lr_cycle_decay: 0.5
"""
ULTRALYTICS = "task: detect\nimgsz: 640\nbatch: 64\nlr0: 0.01\nlrf: 0.01\nepochs: 100\nwarmup_epochs: 3.0\n"


def scaled(folder: Path, text: str, *, size: int, steps: int, request: PlanRequest) -> dict[str, Any]:
    config = config_of(folder, text)
    recipe = Recipe(micro_batch_size=size, accumulation_steps=steps)
    change = change_to(with_scaled_rate(recipe, config.recipe, request), config.recipe, request, why="seen")
    patch = patch_of(config, change, PlanRequest(patch_style=PatchStyle.IN_PLACE))
    assert patch is not None
    values: dict[str, Any] = yaml.safe_load(patch.files[0].patched_text)
    return values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HF, {"learning_rate": 4e-3, "lr_scheduler_kwargs.min_lr": 4e-5}),
        (HF, {"max_steps": 250, "warmup_steps": 25, "save_steps": 50, "logging_steps": 2}),
        (HF, {"eval_steps": 0.1, "num_train_epochs": 3, "warmup_ratio": 0.03, "lr_scheduler_kwargs.num_cycles": 2}),
        (DETECTRON2, {"SOLVER.BASE_LR": 4e-3, "SOLVER.BASE_LR_END": 4e-5, "SOLVER.WARMUP_FACTOR": 0.001}),
        (DETECTRON2, {"SOLVER.MAX_ITER": 250, "SOLVER.WARMUP_ITERS": 25, "SOLVER.STEPS": "(150, 200)"}),
        (DETECTRON2, {"SOLVER.CHECKPOINT_PERIOD": 50, "TEST.EVAL_PERIOD": 100}),
        (LIGHTNING, {"optimizer.lr": 4e-3, "scheduler.max_lr": 4e-2, "scheduler.eta_min": 4e-5}),
        (LIGHTNING, {"trainer.max_steps": 250, "trainer.val_check_interval": 100, "scheduler.pct_start": 0.3}),
        (LIGHTNING, {"trainer.max_epochs": 12, "trainer.limit_train_batches": 0.5, "trainer.log_every_n_steps": 50}),
        (TIMM, {"lr": 4e-3, "min_lr": 4e-5, "warmup_lr": 4e-6}),
        (TIMM, {"epochs": 300, "warmup_epochs": 5, "lr_cycle_decay": 0.5}),
        (TIMM.replace("lr: 1.0e-3", "lr: null"), {"lr": None, "min_lr": 1e-5, "warmup_lr": 1e-6}),
        (ULTRALYTICS, {"lr0": 0.01, "lrf": 0.01, "epochs": 100, "warmup_epochs": 3.0}),
    ],
)
def test_four_times_the_micro_batch(text: str, expected: dict[str, Any], tmp_path: Path) -> None:
    size = 256 if text == ULTRALYTICS else 16
    values = scaled(tmp_path, text, size=size, steps=1, request=PlanRequest())
    assert {key: get(values, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HF, {"learning_rate": 1e-3, "max_steps": 1000, "warmup_steps": 100, "lr_scheduler_kwargs.min_lr": 1e-5}),
        (LIGHTNING, {"optimizer.lr": 1e-3, "trainer.max_steps": 1000, "scheduler.max_lr": 1e-2}),
        (LIGHTNING, {"trainer.val_check_interval": 800, "trainer.accumulate_grad_batches": 2}),
    ],
)
def test_a_held_global_batch_keeps_rates_and_steps_and_passes_follow_accumulation(
    text: str, expected: dict[str, Any], tmp_path: Path
) -> None:
    values = scaled(tmp_path, text, size=2, steps=2, request=PlanRequest(global_batch_size=4))
    assert {key: get(values, key) for key in expected} == expected


@pytest.mark.parametrize(("rule", "rate", "floor"), [("sqrt", 2e-3, 2e-5), ("none", 1e-3, 1e-5)])
def test_floors_follow_the_rule_of_the_rate(rule: str, rate: float, floor: float, tmp_path: Path) -> None:
    request = PlanRequest(learning_rate_rule=parse_rule(rule))
    values = scaled(tmp_path, HF, size=16, steps=1, request=request)
    assert (values["learning_rate"], values["lr_scheduler_kwargs"]["min_lr"]) == (rate, floor)
    assert values["max_steps"] == 250
