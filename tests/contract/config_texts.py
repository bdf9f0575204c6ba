"""What small configs of the ecosystems look like."""

from __future__ import annotations

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
ACCELERATE_SCRIPT = """\
BATCH_SIZE=${BATCH_SIZE:-4}
ARGS="--lr 2e-4 \\
  --gradient_accumulation_steps 1"
accelerate launch --mixed_precision "no" train.py --batch_size $BATCH_SIZE $ARGS 2>&1 | tee log
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
SWIN = """\
MODEL: {TYPE: swin}
DATA:
  BATCH_SIZE: 4  # per GPU
TRAIN:
  BASE_LR: 5.0e-4
AMP_ENABLE: False
"""
TORCHTITAN = """\
[model]
flavor = "8B"

[optimizer]
lr = 2e-4

[lr_scheduler]
warmup_steps = 200  # of 16000

[training]
local_batch_size = 4
steps = 16000
mixed_precision_param = "float32"
"""
TORCHTUNE = """\
model:
  _component_: torchtune.models.llama3_2.lora_llama3_2_1b
  lora_rank: 64  # higher increases accuracy and memory
batch_size: 4
max_steps_per_epoch: null
lr_scheduler:
  num_warmup_steps: 16000  # of more
gradient_accumulation_steps: 1
optimizer:
  _component_: torch.optim.AdamW
  lr: 2.0e-4
enable_activation_checkpointing: False  # True reduces memory
dtype: fp32
metric_logger:
  log_dir: ${output_dir}/logs
output_dir: out
"""
ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: 'NO'
mixed_precision: 'no'
num_processes: 1
"""
FLAG_KNOBS = {
    "micro_batch_size": "bs",
    "accumulation_steps": "passes",
    "precision": "format",
    "learning_rate": "rate",
    "iterations": "iters",
}
PLAIN_SHELL = """\
# the depth network
python train.py --bs 4 --rate 2e-4 --passes=1 \\
  --format fp32 --iters 16000
"""
PLAIN_ARGPARSE = """\
from argparse import ArgumentParser
parser = ArgumentParser()
parser.add_argument("--bs", default=4, type=int)
parser.add_argument("--rate", type=float, default=2e-4)
parser.add_argument("--passes", type=int, default=1)
parser.add_argument("--format", default="fp32")
parser.add_argument("--iters", default=16000, type=int)
raise SystemExit(parser.parse_args())
"""
