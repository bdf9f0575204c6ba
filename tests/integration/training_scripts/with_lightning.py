import argparse

import lightning
import torch
from torch import nn


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))

    def training_step(self, batch, index):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


parser = argparse.ArgumentParser()
parser.add_argument("--bs", type=int)
parser.add_argument("--steps", type=int)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--precision", default="32-true")
arguments = parser.parse_args()
trainer = lightning.Trainer(
    max_steps=arguments.steps,
    accumulate_grad_batches=arguments.accumulate,
    precision=arguments.precision,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
samples = torch.ones(1024, 1, 256).expand(-1, 1024, -1)
trainer.fit(Net(), torch.utils.data.DataLoader(samples, batch_size=arguments.bs))
