"""Tell circles, squares and triangles apart: a model and a dataset for mmengine's registries."""

from itertools import pairwise

import numpy as np
import torch
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, MODELS
from mmengine.structures import BaseDataElement
from torch import nn
from torch.nn import functional

SHAPES = ("circle", "square", "triangle")


@DATASETS.register_module()
class DrawnShapes:
    """Grey images of one shape each, of random size and place, under noise."""

    def __init__(self, size, count):
        self.size, self.count = size, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        random = np.random.default_rng(index)
        label = index % len(SHAPES)
        radius = random.uniform(0.15, 0.35) * self.size
        x, y = random.uniform(radius, self.size - radius, 2)
        down, right = np.mgrid[: self.size, : self.size]
        down, right = down - y, right - x
        inside = {
            "circle": down**2 + right**2 < radius**2,
            "square": np.maximum(abs(down), abs(right)) < 0.8 * radius,
            "triangle": (down < 0.8 * radius) & (down > 2 * abs(right) - 0.8 * radius),
        }[SHAPES[label]]
        image = 60 + 120 * inside + random.normal(0, 20, inside.shape)
        pixels = torch.from_numpy(image.clip(0, 255).astype(np.uint8))
        return {"inputs": pixels[None], "data_samples": BaseDataElement(label=torch.tensor(label))}


@MODELS.register_module()
class ShapeNet(BaseModel):
    """Four strided convolutions, then a linear classifier."""

    def __init__(self, width, data_preprocessor=None):
        super().__init__(data_preprocessor=data_preprocessor)
        widths = [1, width, 2 * width, 4 * width, 4 * width]
        layers = []
        for narrow, wide in pairwise(widths):
            layers += [nn.Conv2d(narrow, wide, 3, 2, padding=1), nn.BatchNorm2d(wide), nn.ReLU(inplace=True)]
        self.backbone = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], len(SHAPES))

    def forward(self, inputs, data_samples=None, mode="tensor"):
        scores = self.head(self.backbone(inputs).mean(dim=(2, 3)))
        if mode != "loss":
            return scores
        labels = torch.stack([each.label for each in data_samples])
        return {"loss": functional.cross_entropy(scores, labels)}
