"""Tell brick, grass and gravel apart in patches of real photographs."""

from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, default_collate

import memplan

CLASSES = ("brick", "grass", "gravel")


@lru_cache
def load_photographs():
    """Read the photographs from the installed scikit-image package: grey levels in -1..1, 512 x 512 each."""
    package = find_spec("skimage")
    if package is None:
        raise ModuleNotFoundError("the photographs come with scikit-image: pip install scikit-image")
    folder = Path(package.origin).parent / "data"
    images = [np.asarray(Image.open(folder / f"{name}.png").convert("L"), dtype=np.float32) for name in CLASSES]
    return [torch.from_numpy(image / 127.5 - 1.0) for image in images]


class TexturePatches(Dataset):
    """Random square patches; an item is (patch of shape (1, size, size), class)."""

    def __init__(self, patch_size, length):
        self.patch_size, self.length = patch_size, length
        self.photographs = load_photographs()

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        label = index % len(CLASSES)
        photograph = self.photographs[label]
        top, left = (int(torch.randint(edge - self.patch_size + 1, ())) for edge in photograph.shape)
        patch = photograph[top : top + self.patch_size, left : left + self.patch_size]
        return patch[None], label


class TextureNet(nn.Module):
    """Four stages of convolution, batch normalisation, ReLU and pooling, then a linear classifier."""

    def __init__(self, width):
        super().__init__()
        widths = [1, width, 2 * width, 4 * width, 8 * width]
        self.stages = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(narrow, wide, 3, padding=1, bias=False),
                    nn.BatchNorm2d(wide),
                    nn.ReLU(inplace=True),
                    nn.MaxPool2d(2),
                )
                for narrow, wide in pairwise(widths)
            )
        )
        self.classify = nn.Linear(widths[-1], len(CLASSES))

    def forward(self, patches):
        return self.classify(self.stages(patches).mean(dim=(2, 3)))


def loss_of(model, batch):
    patches, labels = batch
    return functional.cross_entropy(model(patches).float(), labels)


def make_optimizer(config, parameters):
    settings = config["optimizer"]
    return torch.optim.AdamW(parameters, lr=settings["lr"], weight_decay=settings["weight_decay"])


def make_loader(config, batch_size=None):
    data = config["data"]
    patches = TexturePatches(data["patch_size"], length=3000)
    return DataLoader(
        patches,
        batch_size=batch_size or data["batch_size"],
        num_workers=data["num_workers"],
        shuffle=True,
        drop_last=True,
    )


def make_workload(config):
    """Describe the training step to memplan."""

    def batch(size):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            patches = TexturePatches(config["data"]["patch_size"], length=size)
            return default_collate([patches[index] for index in range(size)])

    return memplan.Workload(
        name="TextureNet",
        model=lambda: TextureNet(config["model"]["width"]),
        batch=batch,
        loss=loss_of,
        optimizer=lambda parameters: make_optimizer(config, parameters),
        loader=lambda size: make_loader(config, size),
    )
