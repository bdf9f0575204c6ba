import argparse

import torch
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import nn


class Net(BaseModel):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))

    def forward(self, images, mode="loss"):
        return {"loss": self.net(images).square().mean()}


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 1024

    def __getitem__(self, index):
        return {"images": torch.ones(1024, 256)}


parser = argparse.ArgumentParser()
parser.add_argument("--bs", type=int)
parser.add_argument("--steps", type=int)
parser.add_argument("--accumulate", type=int, default=1)
arguments = parser.parse_args()
runner = Runner(
    model=Net(),
    work_dir="work",
    train_dataloader={
        "dataset": Samples(),
        "batch_size": arguments.bs,
        "sampler": {"type": "InfiniteSampler"},
        "num_workers": 0,
        "collate_fn": {"type": "default_collate"},
    },
    train_cfg={"by_epoch": False, "max_iters": arguments.steps},
    optim_wrapper={"optimizer": {"type": "AdamW", "lr": 1e-3}, "accumulative_counts": arguments.accumulate},
)
runner.train()
