"""The two views of the Middlebury 2014 motorcycle scene, labelled by depth.

The photographs and the disparity map are read from the installed scikit-image package; nothing is downloaded.
"""

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from depthseg.transforms import build_pipeline

IGNORED = 255


def depth_layers(disparity, edges):
    """Label every pixel by its disparity: 0 is farthest, ``len(edges)`` nearest, ``IGNORED`` where it is unknown."""
    known = np.isfinite(disparity) & (disparity > 0)
    layers = np.digitize(np.where(known, disparity, 0.0), edges)
    return np.where(known, layers, IGNORED).astype(np.uint8)


def shift_to_right_view(labels, disparity):
    """Carry labels of the left view to the right one, where column x is seen at column x - disparity.

    Of several pixels that land on one place the nearest is seen. Places nothing lands on, hidden from the left camera
    or between two stretched pixels, are ``IGNORED``.
    """
    rows, columns = np.nonzero(labels != IGNORED)
    shifts = disparity[rows, columns]
    far_to_near = np.argsort(shifts, kind="stable")
    rows, columns, shifts = rows[far_to_near], columns[far_to_near], shifts[far_to_near]
    targets = np.rint(columns - shifts).astype(int)
    inside = targets >= 0
    shifted = np.full_like(labels, IGNORED)
    shifted[rows[inside], targets[inside]] = labels[rows[inside], columns[inside]]  # the last one written stays
    return shifted


@lru_cache
def load_views(edges):
    """Decode both photographs once: ((left image, left labels), (right image, right labels))."""
    folder = _photographs()
    with np.load(folder / "motorcycle_disp.npz") as archive:
        disparity = archive["arr_0"]
    left_labels = depth_layers(disparity, edges)
    left = np.asarray(Image.open(folder / "motorcycle_left.png").convert("RGB"))
    right = np.asarray(Image.open(folder / "motorcycle_right.png").convert("RGB"))
    return (left, left_labels), (right, shift_to_right_view(left_labels, disparity))


def _photographs():
    package = find_spec("skimage")
    if package is None or package.origin is None:
        raise FileNotFoundError("the photographs come with scikit-image: pip install scikit-image")
    return Path(package.origin).parent / "data"


class MotorcycleDepthLayers(Dataset):
    """Crops of both views between two columns.

    For training every item is a random crop of one view. With ``tile_size`` (height, width) the items are fixed tiles
    that cover the columns from top to bottom.
    """

    def __init__(self, columns, layer_edges, pipeline, crops_per_epoch=None, tile_size=None):
        first, last = columns
        views = load_views(tuple(layer_edges))
        self.areas = [(image[:, first:last], labels[:, first:last]) for image, labels in views]
        if tile_size is not None:
            self.areas = [tile for area in self.areas for tile in _tiles(*area, *tile_size)]
        self.length = len(self.areas) if crops_per_epoch is None else crops_per_epoch
        self.pipeline = build_pipeline(pipeline)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        image, labels = self.areas[index % len(self.areas)]
        for transform in self.pipeline:
            image, labels = transform(image, labels)
        pixels = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))
        return pixels, torch.from_numpy(labels.astype(np.int64))


def _tiles(image, labels, height, width):
    for top in (0, image.shape[0] - height):
        window = np.s_[top : top + height, :width]
        yield image[window], labels[window]


DATASETS = {"MotorcycleDepthLayers": MotorcycleDepthLayers}


def build_dataset(settings):
    """Make the dataset that ``data.train`` or ``data.val`` of a config describes."""
    return DATASETS[settings["type"]](**{key: settings[key] for key in settings if key != "type"})


def build_loader(config, samples_per_gpu=None):
    """Make the training loader of a config, at its own batch size unless another is given."""
    data = config["data"]
    return DataLoader(
        build_dataset(data["train"]),
        batch_size=samples_per_gpu or data["samples_per_gpu"],
        num_workers=data["workers_per_gpu"],
        shuffle=True,
        drop_last=True,
    )
