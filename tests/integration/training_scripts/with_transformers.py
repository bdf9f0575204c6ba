import argparse

import torch
from torch import nn
from transformers import Trainer, TrainingArguments


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))

    def forward(self, images, labels=None):
        return {"loss": self.net(images).square().mean()}


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 1024

    def __getitem__(self, index):
        return {"images": torch.ones(1024, 256), "labels": 0}


parser = argparse.ArgumentParser()
parser.add_argument("--bs", type=int)
parser.add_argument("--steps", type=int)
parser.add_argument("--accumulate", type=int, default=1)
arguments = parser.parse_args()
training = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=arguments.bs,
    gradient_accumulation_steps=arguments.accumulate,
    max_steps=arguments.steps,
    use_cpu=True,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
)
Trainer(model=Net(), args=training, train_dataset=Samples()).train()
