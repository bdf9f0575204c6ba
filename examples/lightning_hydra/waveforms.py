"""Tell sine, square and sawtooth waves apart under noise: a LightningModule and its data."""

import math
from itertools import pairwise

import lightning.pytorch as pl
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

SHAPES = (
    torch.sin,
    lambda phase: torch.sign(torch.sin(phase)),
    lambda phase: 2 * torch.remainder(phase / (2 * math.pi), 1) - 1,
)


class Waveforms(Dataset):
    """Noisy waves of random pitch and phase; an item is (wave of shape (1, length), shape's number)."""

    def __init__(self, length, count):
        self.length, self.count = length, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        label = index % len(SHAPES)
        pitch, shift = 0.02 + 0.1 * torch.rand(()), 2 * math.pi * torch.rand(())
        wave = SHAPES[label](torch.arange(self.length) * pitch + shift)
        return (wave + 0.3 * torch.randn(self.length))[None], label


class WaveformData(pl.LightningDataModule):
    def __init__(self, batch_size, length, count, num_workers):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage):
        self.waves = Waveforms(self.hparams.length, self.hparams.count)

    def train_dataloader(self):
        return DataLoader(
            self.waves, batch_size=self.hparams.batch_size, num_workers=self.hparams.num_workers, shuffle=True
        )


class WaveformNet(pl.LightningModule):
    """Five strided convolutions, then a linear classifier."""

    def __init__(self, width, optimizer):
        super().__init__()
        self.save_hyperparameters()
        widths = [1, width, 2 * width, 2 * width, 4 * width, 4 * width]
        self.stages = nn.Sequential(
            *(
                nn.Sequential(nn.Conv1d(narrow, wide, 9, 2, padding=4), nn.BatchNorm1d(wide), nn.GELU())
                for narrow, wide in pairwise(widths)
            )
        )
        self.classify = nn.Linear(widths[-1], len(SHAPES))

    def forward(self, waves):
        return self.classify(self.stages(waves).mean(dim=2))

    def training_step(self, batch, batch_idx):
        waves, labels = batch
        loss = functional.cross_entropy(self(waves), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        optimizer = self.hparams.optimizer(self.parameters())
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
