"""Take the noise off photographs: the data, the network and the loss."""

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

NAMES = ("brick", "camera", "grass", "gravel")
NOISE = 0.2


@lru_cache
def load_photographs():
    """Read the photographs from the installed scikit-image package: grey levels in -1..1, 512 x 512 each."""
    package = find_spec("skimage")
    if package is None:
        raise ModuleNotFoundError("the photographs come with scikit-image: pip install scikit-image")
    folder = Path(package.origin).parent / "data"
    images = [np.asarray(Image.open(folder / f"{name}.png").convert("L"), dtype=np.float32) for name in NAMES]
    return [torch.from_numpy(image / 127.5 - 1.0) for image in images]


class NoisyPatches(Dataset):
    """Random square patches; an item is (noisy patch, clean patch), each of shape (1, size, size)."""

    def __init__(self, patch_size, length):
        self.patch_size, self.length = patch_size, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        photograph = load_photographs()[index % len(NAMES)]
        top, left = (int(torch.randint(edge - self.patch_size + 1, ())) for edge in photograph.shape)
        clean = photograph[None, top : top + self.patch_size, left : left + self.patch_size]
        return clean + NOISE * torch.randn_like(clean), clean


class Denoiser(nn.Module):
    """Convolutions that predict the noise, as in DnCNN (Zhang et al. 2017)."""

    def __init__(self, width=32, depth=6):
        super().__init__()
        layers = [nn.Conv2d(1, width, 3, padding=1), nn.ReLU(inplace=True)]
        for _ in range(depth - 2):
            layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers, nn.Conv2d(width, 1, 3, padding=1))

    def forward(self, noisy):
        return noisy - self.layers(noisy)


def loss_of(model, batch):
    noisy, clean = batch
    return functional.mse_loss(model(noisy).float(), clean)
