"""What every config ecosystem promises: read, patch, apply, reload, and nothing but the intended values differ."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from memplan.configs import (
    KnobName,
    PatchStyle,
    RecipeChange,
    UserConfig,
    apply_patch,
    expressible,
    plan_patch,
    read_config,
    undo_patch,
)
from memplan.configs.keys import first_difference, lookup, with_value
from memplan.configs.loader_keys import loader_key
from memplan.errors import ConfigError, PatchError
from memplan.recipe import Precision

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.patches import ConfigPatch

pytestmark = pytest.mark.usefixtures("memplans_reader_alone")

MMSEG_BASE = """\
# every config of the project inherits from this one
model = dict(type='EncoderDecoder', backbone=dict(type='MiT', with_cp=False))
data = dict(samples_per_gpu=2, workers_per_gpu=4, train=dict(pipeline=[dict(type='Crop', size=(512, 512))]))
optimizer = dict(type='AdamW', lr=6e-5, betas=(0.9, 0.999))
optimizer_config = dict(grad_clip=dict(max_norm=35))
lr_config = dict(policy='poly', warmup='linear', warmup_iters=1500, min_lr=1e-6, by_epoch=False)
runner = dict(type='IterBasedRunner', max_iters=16000)
checkpoint_config = dict(by_epoch=False, interval=1600)
evaluation = dict(interval=1600)
"""
MMSEG_LEAF = "_base_ = ['./base.py']\ndata = dict(samples_per_gpu=4)\n"
MMENGINE_BASE = """\
model = dict(type='EncoderDecoder', backbone=dict(type='MiT', with_cp=False))
train_dataloader = dict(batch_size=2, num_workers=4, sampler=dict(type='InfiniteSampler', shuffle=True))
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=6e-5), clip_grad=dict(max_norm=35))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', eta_min=1e-6, power=1.0, begin=1500, end=16000, by_epoch=False),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=16000, val_interval=1600)
default_hooks = dict(checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=1600))
"""
MMENGINE_LEAF = "_base_ = './base.py'\ntrain_dataloader = dict(batch_size=4)\n"
PURE_BASE = """\
from mmengine.optim import OptimWrapper
from torch.optim import AdamW

model = dict(type='EncoderDecoder', backbone=dict(type='MiT', with_cp=False))
train_dataloader = dict(batch_size=2, num_workers=4)
optim_wrapper = dict(type=OptimWrapper, optimizer=dict(type=AdamW, lr=6e-5))
param_scheduler = [dict(type='PolyLR', eta_min=1e-6, begin=1500, end=16000, by_epoch=False)]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=16000, val_interval=1600)
"""
PURE_LEAF = """\
from mmengine.config import read_base

with read_base():
    from .base import *

train_dataloader.update(batch_size=4)
"""
LAZY_BASE = """\
import torch
from detectron2.config import LazyCall as L

SGD = L(torch.optim.SGD)(lr=6e-5)
train = dict(max_iter=16000, amp=dict(enabled=False), checkpointer=dict(period=5000), eval_period=0)
dataloader = dict(train=L(torch.utils.data.DataLoader)(total_batch_size=16, num_workers=4))
"""
LAZY_LEAF = """\
from .base import SGD as optimizer
from .base import dataloader, train

dataloader.train.total_batch_size = 4  # all cards
"""
HF_YAML = """\
### train
per_device_train_batch_size: 4
learning_rate: 2.0e-4
max_steps: 16000
warmup_steps: 0.1
output_dir: saves/run
"""
HF_JSON = """\
{
  "output_dir": "saves/run",
  "per_device_train_batch_size": 4,
  "learning_rate": 0.0002,
  "max_steps": 16000
}
"""
HF_SECTION = """\
output_dir: saves/run
per_device_train_batch_size: 4
learning_rate: 2.0e-4
max_steps: 16000
deepspeed:
  train_batch_size: 8  # two cards
  gradient_accumulation_steps: auto
  fp16: {enabled: false, loss_scale: 0}
  optimizer: {type: AdamW, params: {lr: 2.0e-4, betas: auto}}
fp16: false
"""
LIGHTNING_YAML = """\
# one flat file, read with OmegaConf
general:
  gpus: 1
  batch: 4   # per GPU
data:
  batch_size: ${general.batch}
  num_workers: 4
optimizer:
  lr: 2.0e-4
scheduler:
  max_lr: ${optimizer.lr}
  eta_min: 1.0e-6
trainer:
  precision: 32
  max_steps: 16000
  val_check_interval: 0.5
"""
HYDRA_TREE = {
    "data/depth.yaml": "batch_size: ${batch}   # followed\nnum_workers: 4\n",
    "trainer/default.yaml": "# Lightning's own\nmax_steps: 16000\nprecision: 32\naccelerator: gpu\n",
    "trainer/gpu.yaml": "defaults:\n  - default\ndevices: 1\n",
    "model/net.yaml": "_target_: net.Net\noptimizer:\n  _target_: torch.optim.AdamW\n  lr: 2.0e-4\n",
    "experiment/mine.yaml": "# @package _global_\ndefaults:\n  - override /trainer: gpu\nseed: 7\n",
    "train.yaml": """\
# @package _global_
defaults:
  - _self_
  - data: depth
  - model: net
  - trainer: default
  - optional local: default
  - experiment: mine
  - override hydra/job_logging: disabled
batch: 4
seed: 1
""",
}
LIGHTNING_CLI = """\
seed_everything: 7
trainer:
  max_steps: 16000
  accelerator: auto
model:
  class_path: net.DepthModule
  init_args:
    width: 32
data:
  class_path: net.DepthData
  init_args:
    batch_size: 4
optimizer:
  class_path: torch.optim.AdamW
  init_args: {lr: 2.0e-4}
"""
LIGHTNING_EXPERIMENT = """\
trainer:
  max_steps: 16000
data:
  init_args:
    batch_size: 4  # of this experiment
optimizer:
  class_path: torch.optim.AdamW
  init_args:
    lr: 2.0e-4
"""
TIMM = """\
batch_size: 4
model: resnet50
opt: adamw
lr: 2.0e-4
warmup_lr: 1.0e-06
amp: false
epochs: 300
sched: cosine
"""
TIMM_AUTOMATIC = TIMM.replace("lr: 2.0e-4", "lr: null")
ULTRALYTICS = """\
task: detect
batch: 64  # of all cards
imgsz: 640
amp: False
optimizer: auto
lr0: 0.01
nbs: 64
"""
LLAMA_FACTORY = """\
### method
stage: sft
do_train: true
finetuning_type: lora
per_device_train_batch_size: 4
learning_rate: 2.0e-4
max_steps: 16000
"""
AXOLOTL = """\
base_model: net
batch_size: 4
micro_batch_size: 4
learning_rate: 0.0002
max_steps: 16000
bf16: false
datasets:
- path: data
"""
DEEPSPEED = """\
{
  "train_batch_size": 4,
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 1,
  "fp16": {"enabled": false, "loss_scale": 0},
  "optimizer": {"type": "AdamW", "params": {"lr": 2e-4, "betas": "auto"}},
  "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 16000, "warmup_num_steps": "auto"}},
  "zero_optimization": {"stage": 2}
}
"""
DETECTRON2_BASE = """\
MODEL:
  META_ARCHITECTURE: "GeneralizedRCNN"
  ANCHORS: !!python/object/apply:eval ["[x for x in (32, 64)]"]
SOLVER:
  IMS_PER_BATCH: 2
  BASE_LR: 0.0002
  STEPS: (12000, 14000)
  AMP: {ENABLED: False}
  MAX_ITER: 16000
"""
DETECTRON2_LEAF = '_BASE_: "base.yaml"\nSOLVER:\n  IMS_PER_BATCH: 4  # all cards\n'
LAUNCH_SCRIPT = """\
#!/bin/bash
#SBATCH --gres=gpu:1
BATCH_SIZE=4
# python old.py --batch_size 8
srun torchrun --nproc_per_node=1 train.py \\
    --batch_size ${BATCH_SIZE} --lr 2e-4 \\
    --precision fp32 --accum_iter=1 --data "$DATA" # where it lies
"""
HF_SCRIPT = """\
accelerate launch run.py --per_device_train_batch_size 4 --max_steps 16000 \\
  --learning_rate 2e-4 --output_dir out
"""
ARGPARSE = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument('--batch_size', default=4, type=int)
parser.add_argument("--lr", type=float, default=2e-4, help="peak")
parser.add_argument("--accum_iter", type=int, default=1)
parser.add_argument("--precision", default='fp32')
raise SystemExit(parser.parse_args())
"""
PLAIN_KNOBS = {
    "micro_batch_size": "data.batch_size",
    "accumulation_steps": "training.accumulation",
    "precision": "training.precision",
    "learning_rate": "optimizer.lr",
    "iterations": "training.max_iters",
}
PLAIN_YAML = """\
# training of the depth network
data: {batch_size: 4, num_workers: 2}   # per GPU
training:
  precision: fp32
  accumulation: 1
  max_iters: 16000
optimizer:
    lr: 2.0e-4
    name: "AdamW"
"""
PLAIN_JSON = """\
{
\t"data": {"batch_size": 4, "num_workers": 2},
\t"training": {"precision": "fp32", "accumulation": 1, "max_iters": 16000},
\t"optimizer": {"lr": 2e-4, "name": "AdamW"}
}
"""
PLAIN_TOML = """\
# training of the depth network
[data]
"batch_size" = 4   # per GPU
num_workers = 2

[training]
precision = 'fp32'
accumulation = 1
max_iters = 16_000

[optimizer]
lr = 2e-4
name = "AdamW"
"""
PLAIN_PYTHON = """\
BATCH_SIZE = 4
data = dict(batch_size=BATCH_SIZE, num_workers=2)
training = {'precision': 'fp32', 'accumulation': 1, 'max_iters': 16_000}
optimizer = dict(lr=2e-4, name='AdamW')  # was 1e-4 with 2 cards
"""


@dataclass(frozen=True)
class Case:
    """One config of one ecosystem; the last file is the one the user names, behind those in ``named_before``."""

    name: str
    format_name: str
    files: dict[str, str]
    style: PatchStyle
    knob_keys: dict[str, str] = field(default_factory=dict)
    newline: str = "\n"
    final_newline: bool = True
    named_before: tuple[str, ...] = ()

    @property
    def length_key(self) -> str | None:
        own: dict[str, str | None] = {
            "openmmlab-0.x": "runner.max_iters",
            "mmengine": "train_cfg.max_iters",
            "huggingface": "max_steps",
        }
        own |= {"llama-factory": "max_steps", "axolotl": "max_steps", "timm": None, "ultralytics": None}
        own |= {"launch-script": None, "argparse-script": None}
        own["detectron2"] = "SOLVER.MAX_ITER"
        own["detectron2-lazy"] = "train.max_iter"
        own["deepspeed"] = "scheduler.params.total_num_steps"
        own["lightning-hydra"] = own["lightning-cli"] = "trainer.max_steps"
        return own.get(self.format_name, "training.max_iters")

    def write(self, folder: Path) -> Path:
        for name, text in self.files.items():
            shown = text if self.final_newline else text.removesuffix("\n")
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(shown.replace("\n", self.newline).encode())
        return folder / list(self.files)[-1]


MMSEG = {"base.py": MMSEG_BASE, "leaf.py": MMSEG_LEAF}
LAYERS = {"base.yaml": LIGHTNING_CLI.replace("lr: 2.0e-4", "lr: 0.1"), "exp.yaml": LIGHTNING_EXPERIMENT}
LAZY = {"base.py": LAZY_BASE, "leaf.py": LAZY_LEAF}
MMSEG_FLAT = {"leaf.py": MMSEG_BASE}
CASES = (
    Case("mmseg child", "openmmlab-0.x", MMSEG, PatchStyle.CHILD),
    Case("mmseg child crlf", "openmmlab-0.x", MMSEG, PatchStyle.CHILD, newline="\r\n", final_newline=False),
    Case("mmseg in place crlf", "openmmlab-0.x", MMSEG_FLAT, PatchStyle.IN_PLACE, newline="\r\n", final_newline=False),
    Case("mmengine child", "mmengine", {"base.py": MMENGINE_BASE, "leaf.py": MMENGINE_LEAF}, PatchStyle.CHILD),
    Case("pure python child", "mmengine", {"base.py": PURE_BASE, "leaf.py": PURE_LEAF}, PatchStyle.CHILD),
    Case("pure python", "mmengine", {"base.py": PURE_BASE, "a-leaf.py": PURE_LEAF}, PatchStyle.IN_PLACE, {}, "\r\n"),
    Case("lazy child", "detectron2-lazy", LAZY, PatchStyle.CHILD),
    Case("lazy in place crlf", "detectron2-lazy", LAZY, PatchStyle.IN_PLACE, newline="\r\n", final_newline=False),
    Case("hf yaml", "huggingface", {"x.yaml": HF_YAML}, PatchStyle.IN_PLACE),
    Case("hf section crlf", "huggingface", {"x.yaml": HF_SECTION}, PatchStyle.IN_PLACE, {}, "\r\n", False),
    Case("hf json", "huggingface", {"x.json": HF_JSON}, PatchStyle.IN_PLACE, final_newline=False),
    Case("lightning yaml", "lightning-hydra", {"x.yaml": LIGHTNING_YAML}, PatchStyle.IN_PLACE),
    Case("lightning crlf", "lightning-hydra", {"x.yaml": LIGHTNING_YAML}, PatchStyle.IN_PLACE, {}, "\r\n", False),
    Case("hydra experiment", "lightning-hydra", HYDRA_TREE, PatchStyle.CHILD),
    Case("hydra groups in place", "lightning-hydra", HYDRA_TREE, PatchStyle.IN_PLACE),
    Case("lightning cli", "lightning-cli", {"x.yaml": LIGHTNING_CLI}, PatchStyle.CHILD),
    Case("lightning cli crlf", "lightning-cli", {"x.yaml": LIGHTNING_CLI}, PatchStyle.CHILD, {}, "\r\n", False),
    Case("lightning cli in place", "lightning-cli", {"x.yaml": LIGHTNING_CLI}, PatchStyle.IN_PLACE),
    Case("lightning cli layers", "lightning-cli", LAYERS, PatchStyle.CHILD, named_before=("base.yaml",)),
    Case("lightning cli last layer", "lightning-cli", LAYERS, PatchStyle.IN_PLACE, {}, "\r\n", False, ("base.yaml",)),
    Case("llama-factory", "llama-factory", {"x.yaml": LLAMA_FACTORY}, PatchStyle.IN_PLACE),
    Case("axolotl", "axolotl", {"x.yml": AXOLOTL}, PatchStyle.IN_PLACE),
    Case("timm", "timm", {"args.yaml": TIMM}, PatchStyle.IN_PLACE),
    Case("timm automatic rate crlf", "timm", {"args.yaml": TIMM_AUTOMATIC}, PatchStyle.IN_PLACE, {}, "\r\n", False),
    Case("ultralytics", "ultralytics", {"args.yaml": ULTRALYTICS}, PatchStyle.IN_PLACE),
    Case("deepspeed", "deepspeed", {"x.json": DEEPSPEED}, PatchStyle.IN_PLACE),
    Case("detectron2", "detectron2", {"base.yaml": DETECTRON2_BASE, "x.yaml": DETECTRON2_LEAF}, PatchStyle.CHILD),
    Case("detectron2 in place crlf", "detectron2", {"x.yml": DETECTRON2_BASE}, PatchStyle.IN_PLACE, {}, "\r\n", False),
    Case("yaml", "plain-yaml", {"x.yaml": PLAIN_YAML}, PatchStyle.IN_PLACE, PLAIN_KNOBS),
    Case("yaml crlf", "plain-yaml", {"x.yml": PLAIN_YAML}, PatchStyle.IN_PLACE, PLAIN_KNOBS, "\r\n", False),
    Case("json crlf", "plain-json", {"x.json": PLAIN_JSON}, PatchStyle.IN_PLACE, PLAIN_KNOBS, "\r\n", False),
    Case("toml", "plain-toml", {"x.toml": PLAIN_TOML}, PatchStyle.IN_PLACE, PLAIN_KNOBS),
    Case("toml crlf", "plain-toml", {"x.toml": PLAIN_TOML}, PatchStyle.IN_PLACE, PLAIN_KNOBS, "\r\n", False),
    Case("launch script", "launch-script", {"x.sh": LAUNCH_SCRIPT}, PatchStyle.IN_PLACE),
    Case("launch script crlf", "launch-script", {"x.sh": LAUNCH_SCRIPT}, PatchStyle.IN_PLACE, {}, "\r\n", False),
    Case("hf script", "huggingface", {"x.sbatch": HF_SCRIPT}, PatchStyle.IN_PLACE),
    Case("argparse", "argparse-script", {"x.py": ARGPARSE}, PatchStyle.IN_PLACE),
    Case("python crlf", "plain-python", {"x.py": PLAIN_PYTHON}, PatchStyle.IN_PLACE, PLAIN_KNOBS, "\r\n", False),
)
EVERY_CASE = pytest.mark.parametrize("case", CASES, ids=[each.name for each in CASES])


def read(case: Case, path: Path) -> UserConfig:
    is_named = path.name == Path(list(case.files)[-1]).name
    before = [path.with_name(each) for each in (case.named_before if is_named else ())]
    return read_config(*before, path, knob_keys=case.knob_keys)


def wider(config: UserConfig) -> RecipeChange:
    """Three times the batch in fp16, each optimizer step over two passes where the ecosystem can accumulate."""
    steps = 1 if config.format_name.startswith("detectron2") else 2
    start = config.original.recipe if config.original else config.recipe
    recipe = replace(
        start,
        micro_batch_size=start.micro_batch_size * 3,
        accumulation_steps=steps,
        precision=Precision.FP16,
        learning_rate=None if start.learning_rate is None else float(f"{start.learning_rate * 3 * steps:.12g}"),
    )
    return RecipeChange(recipe=recipe, iteration_factor=Fraction(1, 3), optimizer_step_factor=Fraction(1, 3 * steps))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def applied(case: Case, folder: Path) -> tuple[UserConfig, ConfigPatch]:
    config = read(case, case.write(folder))
    patch = plan_patch(config, wider(config), style=case.style)
    apply_patch(patch)
    return config, patch


@EVERY_CASE
def test_the_ecosystem_is_recognised_and_its_recipe_read(case: Case, tmp_path: Path) -> None:
    config = read(case, case.write(tmp_path))
    is_python_tree = config.path.suffix == ".py" and not case.name.startswith(("python", "argparse"))
    rate = 6e-5 if is_python_tree else 2e-4
    assert config.format_name == case.format_name
    assert config.recipe.accumulation_steps == 1
    assert config.recipe.precision is Precision.FP32
    assert config.recipe.learning_rate == {"ultralytics": None, "timm automatic rate crlf": None}.get(case.name, rate)
    assert config.original is None


@EVERY_CASE
def test_planning_a_patch_changes_nothing_on_disk(case: Case, tmp_path: Path) -> None:
    config = read(case, case.write(tmp_path))
    before = contents(tmp_path)
    patch = plan_patch(config, wider(config), style=case.style)
    assert contents(tmp_path) == before
    assert patch.verified_by


@EVERY_CASE
def test_exactly_the_intended_values_differ_after_a_reload(case: Case, tmp_path: Path) -> None:
    config, patch = applied(case, tmp_path)
    reloaded = read(case, Path(patch.files[0].path))
    assert reloaded.recipe == wider(config).recipe
    expected = config.values
    for each in patch.changes:
        expected = with_value(expected, each.key, lookup(reloaded.values, each.key))
    assert first_difference(expected, reloaded.values) is None
    assert all(first_difference(config.values.get(each.key), each.after) is not None for each in patch.changes)


@EVERY_CASE
def test_lengths_follow_the_batch_and_stay_whole(case: Case, tmp_path: Path) -> None:
    if case.length_key is None:
        pytest.skip("its lengths are counted in epochs")
    _, patch = applied(case, tmp_path)
    changed = {each.key: (each.before, each.after) for each in patch.changes}
    assert changed[case.length_key] == ("16000", "2667" if case.length_key.endswith("_steps") else "5333")


@EVERY_CASE
def test_a_second_reading_knows_the_original(case: Case, tmp_path: Path) -> None:
    config, patch = applied(case, tmp_path)
    reloaded = read(case, Path(patch.files[0].path))
    assert reloaded.original is not None
    assert reloaded.original.recipe == config.recipe
    assert case.length_key is None or reloaded.original.values[case.length_key] == 16000


@EVERY_CASE
def test_the_same_change_again_is_nothing(case: Case, tmp_path: Path) -> None:
    _, patch = applied(case, tmp_path)
    reloaded = read(case, Path(patch.files[0].path))
    again = plan_patch(reloaded, wider(reloaded), style=case.style)
    assert (again.diff, again.changes) == ("", ())


@EVERY_CASE
def test_another_change_starts_from_the_original(case: Case, tmp_path: Path) -> None:
    config, patch = applied(case, tmp_path)
    reloaded = read(case, Path(patch.files[0].path))
    change = RecipeChange(recipe=config.recipe, iteration_factor=Fraction(1))
    apply_patch(plan_patch(reloaded, change, style=case.style))
    back = read(case, Path(patch.files[0].path))
    assert back.recipe == config.recipe
    assert back.original is not None
    assert reloaded.original is not None
    assert back.original.recipe == reloaded.original.recipe
    assert {**back.original.values, **reloaded.original.values} == back.original.values
    for each in patch.changes:
        if each.before != "not set":
            assert lookup(back.values, each.key) == lookup(config.values, each.key), each.key


@EVERY_CASE
def test_the_loader_changes_where_that_is_asked_for_and_only_then(case: Case, tmp_path: Path) -> None:
    wanted = {KnobName.LOADER_WORKERS: 3, KnobName.PIN_MEMORY: True, KnobName.PERSISTENT_WORKERS: True}
    config = read(case, case.write(tmp_path))
    keys = {key: value for name, value in wanted.items() if (key := loader_key(config, name))}
    assert not set(keys) & {each.key for each in plan_patch(config, wider(config), style=case.style).changes}
    change = replace(wider(config), loader=wanted)
    patch = plan_patch(config, change, style=case.style)
    assert {each.key: each.value for each in patch.changes if each.key in keys} == keys
    apply_patch(patch)
    reloaded = read(case, Path(patch.files[0].path))
    assert {each.key: each.value for each in reloaded.knobs if each.name in wanted} == keys
    assert plan_patch(reloaded, replace(wider(reloaded), loader=wanted), style=case.style).changes == ()
    apply_patch(plan_patch(reloaded, RecipeChange(recipe=config.recipe), style=case.style))
    back = read(case, Path(patch.files[0].path))
    assert back.recipe == config.recipe
    assert {each.key: each.value for each in back.knobs if each.name in wanted} == keys


@EVERY_CASE
@pytest.mark.parametrize("tool", ["git", "patch"])
def test_the_diff_is_taken_by_git_and_by_patch(case: Case, tool: str, tmp_path: Path) -> None:
    command = {
        "git": ["git", "apply", "--whitespace=nowarn", "change.diff"],
        "patch": ["patch", "-p1", "-i", "change.diff"],
    }
    if shutil.which(tool) is None:
        pytest.skip(f"there is no {tool} on this machine")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)  # noqa: S607
    folder = tmp_path / "configs" / "a folder"
    folder.mkdir(parents=True)
    config = read(case, case.write(folder))
    patch = plan_patch(config, wider(config), style=case.style)
    assert patch.root_path == str(tmp_path)
    (tmp_path / "change.diff").write_bytes(patch.diff.encode())
    subprocess.run(command[tool], cwd=tmp_path, check=True, capture_output=True)
    assert {each.path: Path(each.path).read_bytes() for each in patch.files} == {
        each.path: each.patched_text.encode() for each in patch.files
    }


@EVERY_CASE
def test_undoing_a_patch_restores_every_byte(case: Case, tmp_path: Path) -> None:
    config = read(case, case.write(tmp_path))
    before = contents(tmp_path)
    patch = plan_patch(config, wider(config), style=case.style)
    with pytest.raises(PatchError, match="the patch is not applied"):
        undo_patch(patch)
    apply_patch(patch)
    assert contents(tmp_path) != before
    with pytest.raises(PatchError, match="applied already"):
        apply_patch(patch)
    undo_patch(patch)
    assert contents(tmp_path) == before


@EVERY_CASE
def test_a_file_that_changed_since_it_was_patched_is_not_undone(case: Case, tmp_path: Path) -> None:
    _, patch = applied(case, tmp_path)
    target = Path(patch.files[-1].path)
    target.write_bytes(target.read_bytes() + b"\n")
    before = contents(tmp_path)
    with pytest.raises(PatchError, match="was changed since the patch was applied"):
        undo_patch(patch)
    assert contents(tmp_path) == before


@EVERY_CASE
def test_line_endings_are_kept(case: Case, tmp_path: Path) -> None:
    _, patch = applied(case, tmp_path)
    content = Path(patch.files[0].path).read_bytes()
    assert content.count(b"\r\n") == (content.count(b"\n") if case.newline == "\r\n" else 0)
    if case.style is PatchStyle.IN_PLACE:
        assert content.endswith(b"\n") is case.final_newline


@EVERY_CASE
def test_a_file_that_changed_since_is_left_alone(case: Case, tmp_path: Path) -> None:
    config = read(case, case.write(tmp_path))
    patch = plan_patch(config, wider(config), style=case.style)
    target = Path(patch.files[0].path)
    target.write_bytes(b"# somebody else's\n" + (target.read_bytes() if target.exists() else b""))
    before = contents(tmp_path)
    with pytest.raises(PatchError, match="since the patch was planned"):
        apply_patch(patch)
    assert contents(tmp_path) == before


@EVERY_CASE
def test_what_cannot_be_expressed_is_said_beforehand_and_refused(case: Case, tmp_path: Path) -> None:
    config = read(case, case.write(tmp_path))
    recipe = replace(config.recipe, world_size=2)
    assert expressible(config, config.recipe) is None
    assert "launcher" in str(expressible(config, recipe))
    with pytest.raises(PatchError, match="launcher"):
        plan_patch(config, RecipeChange(recipe=recipe), style=case.style)


@EVERY_CASE
def test_a_mistyped_knob_is_named_with_what_is_near(case: Case, tmp_path: Path) -> None:
    path = case.write(tmp_path)
    knob = next(each for each in read(case, path).knobs if each.name in ("learning_rate", "micro_batch_size"))
    with pytest.raises(ConfigError, match=rf"there is no key '{knob.key}s'.*did you mean .*{knob.key}"):
        read_config(path, knob_keys={**case.knob_keys, knob.name: f"{knob.key}s"})
    with pytest.raises(ConfigError, match=r"no knob 'learning_rte'.*did you mean learning_rate"):
        read_config(path, knob_keys={"learning_rte": "optimizer.lr"})


@EVERY_CASE
def test_every_knob_says_where_it_is_written(case: Case, tmp_path: Path) -> None:
    config = read(case, case.write(tmp_path))
    for knob in config.knobs:
        assert knob.file is not None
        assert knob.line is not None
        line = Path(knob.file).read_text(encoding="utf-8").splitlines()[knob.line - 1]
        assert knob.key.rpartition(".")[2] in line or "BATCH_SIZE" in line
        assert knob.editable_in_place is (knob.file == str(config.path))


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("hydra experiment", "hydra_experiment"),
        ("lightning cli", "lightning_cli_overlay"),
        ("detectron2", "detectron2_child"),
        ("json crlf", "plain_json_crlf"),
        ("deepspeed", "deepspeed_json"),
        ("toml", "plain_toml"),
    ],
)
def test_the_whole_diff(name: str, stem: str, tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    case = next(each for each in CASES if each.name == name)
    _, patch = applied(case, tmp_path)
    golden(f"patches/{stem}.diff", patch.diff)
