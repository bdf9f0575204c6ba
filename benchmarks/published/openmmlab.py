"""Model zoos of mmaction2 0.x and mmsegmentation 0.19: allocated peaks on V100 of 32 GB, torch 1.3 to 1.9.

The loop is mmcv's: SGD with momentum, gradients filled with zeros and so never freed, data parallel with flat buckets
for the gradients, gradients clipped (mmaction). Single precision is single precision on a V100, which has no TF32.
mmaction2 tells whole MiB. mmsegmentation tells one or two decimals of GB, whose unit its documents leave open: taken as
GiB, the convolutional nets whose peak lies in the loss, which needs no workspace, agree with the rebuilt steps in every
digit told but for COCO-Stuff, and BiSeNet's rows, of the same release as those, have two decimals. Its documents say
that cuDNN's benchmark mode was off, its configs that it is on: what the search of algorithms would try on the widest
convolutions, many GiB, is not in these figures.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from published.rows import Peak, Row, table
from published.segmentation_nets import Kept, Segmenter, SkippingNet, TwoPathNet, resnet
from published.segmentation_transformers import PlainTransformer, PyramidTransformer
from torch import nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own convention

from memplan.recipe import Recipe
from memplan.units import GIB, MIB
from memplan.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CLASSES = {"ucf101": 101, "kinetics600": 600, "kinetics700": 700, "kinetics400": 400, "mit": 339, "sthv1": 174}
_DEVICE = "v100-32gb"
_SHIFTED_SHARE = 8
_DEEP_THIRD_STAGE = 23  # from this depth on every second block shifts (mmaction2's ``resnet_tsm.py``)


def action_rows() -> Iterator[Row]:
    """Yield mmaction2's 2-D nets: TSN, and TSM with its temporal shifts."""
    for number, cells in enumerate(table("mmaction")):
        videos, images = int(cells["videos"]), int(cells["images"])
        depth, shifts = cells["backbone"].removeprefix("ResNet").removeprefix("TSM"), "TSM" in cells["backbone"]
        classes = next(count for name, count in _CLASSES.items() if name in cells["config"])
        clips = images // videos
        yield Row(
            key=f"mmaction-{number}-{cells['config']}",
            family="mmaction",
            model=cells["config"],
            workload=functools.partial(recognizer, f"resnet{depth}", clips, classes, shifts=shifts),
            trace_key=f"mmaction {depth} {clips} {classes} {shifts}",
            recipe=Recipe(micro_batch_size=videos, world_size=8),
            device=_DEVICE,
            peak=Peak.ALLOCATED,
            counts_blas_workspaces=False,
            measured_mib=float(cells["mib"]),
        )


def segmentation_rows() -> Iterator[Row]:
    """Yield mmsegmentation's PSPNet and DeepLabV3 on ResNet-50 and -101."""
    for cells in table("mmsegmentation"):
        height, width = (int(side) for side in cells["crop"].split("x"))
        settings = (f"resnet{cells['depth']}", cells["head"], int(cells["classes"]))
        yield _segmentation_row(
            cells,
            family="mmsegmentation",
            workload=functools.partial(segmenter, functools.partial(Segmenter, *settings), (height, width), (1.0, 0.4)),
            trace_key=f"mmseg {settings} {height}x{width} {cells['precision']}",
        )


def two_path_rows() -> Iterator[Row]:
    """Yield mmsegmentation's BiSeNetV1 on ResNet-18 and -50."""
    for cells in table("bisenet"):
        net = functools.partial(TwoPathNet, int(cells["depth"]))
        yield _segmentation_row(
            cells,
            family="mmsegmentation",
            workload=functools.partial(segmenter, net, (1024, 1024), (1.0, 1.0, 1.0)),
            trace_key=f"bisenet {cells['depth']}",
        )


def skipping_rows() -> Iterator[Row]:
    """Yield mmsegmentation's DeepLabV3 on a U-Net, at small crops."""
    for cells in table("unet"):
        side = int(cells["crop"])
        yield _segmentation_row(
            cells,
            family="mmsegmentation",
            workload=functools.partial(segmenter, SkippingNet, (side, side), (1.0, 0.4)),
            trace_key=f"unet {side}",
        )


def pyramid_rows() -> Iterator[Row]:
    """Yield mmsegmentation's SegFormer, which is trained on eight cards with AdamW."""
    for cells in table("segformer"):
        widths, depths = ([int(each) for each in cells[key].split()] for key in ("widths", "depths"))
        yield _segmentation_row(
            cells,
            family="mmseg-transformers",
            workload=functools.partial(
                segmenter, functools.partial(PyramidTransformer, widths, depths), (512, 512), (1.0,), _adamw
            ),
            trace_key=f"segformer {cells['config']}",
            world_size=8,
        )


def plain_transformer_rows() -> Iterator[Row]:
    """Yield mmsegmentation's UPerNet on DeiT, trained like SegFormer."""
    for cells in table("deit"):
        settings = {"has_neck": cells["neck"] == "yes", "is_normalised": cells["normalised"] == "yes"}
        net = functools.partial(PlainTransformer, int(cells["width"]), **settings)
        yield _segmentation_row(
            cells,
            family="mmseg-transformers",
            workload=functools.partial(segmenter, net, (512, 512), (1.0, 0.4), _adamw),
            trace_key=f"deit {cells['width']} {settings}",
            world_size=8,
        )


def _segmentation_row(
    cells: dict[str, str], *, family: str, workload: Callable[[], Workload], trace_key: str, world_size: int = 4
) -> Row:
    precision = cells.get("precision", "fp32")
    return Row(
        key=f"mmseg-{cells['config']}",
        family=family,
        model=cells["config"],
        workload=workload,
        trace_key=trace_key,
        recipe=Recipe(micro_batch_size=int(cells["images"]), precision=precision, world_size=world_size),
        device=_DEVICE,
        peak=Peak.ALLOCATED,
        counts_blas_workspaces=False,
        measured_mib=GIB // MIB * float(cells["gb"]),
    )


def segmenter(
    net: Callable[[], nn.Module], crop: tuple[int, int], weights: tuple[float, ...], optimizer: Any = None
) -> Workload:
    """Label every pixel of a crop with each head of a net, whose losses have these weights."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        scores = [F.interpolate(each, crop, mode="bilinear", align_corners=False) for each in model(batch[0])]
        losses = [F.cross_entropy(Kept.apply(each), batch[1], ignore_index=255) for each in scores]
        return sum((weight * each for weight, each in zip(weights, losses, strict=True)), torch.zeros(()))

    return Workload(
        model=net,
        batch=lambda size: (torch.zeros(size, 3, *crop), torch.zeros(size, *crop, dtype=torch.long)),
        loss=loss,
        optimizer=optimizer or _momentum,
        zero_grad_set_to_none=False,
    )


def recognizer(backbone: str, clips: int, classes: int, *, shifts: bool) -> Workload:
    """Classify videos by the mean over the scores of their clips."""
    return Workload(
        model=functools.partial(_Recognizer, backbone, clips, classes, shifts=shifts),
        batch=lambda size: (torch.zeros(size, clips, 3, 224, 224), torch.zeros(size, dtype=torch.long)),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        optimizer=_momentum,
        grad_clip_norm=40.0,
        zero_grad_set_to_none=False,
    )


def _momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=5e-4, foreach=False)


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=6e-5, foreach=False)


class _Recognizer(nn.Module):
    def __init__(self, backbone: str, clips: int, classes: int, *, shifts: bool) -> None:
        super().__init__()
        self.net = resnet(backbone)
        self.net.fc = nn.Identity()
        self.clips = clips
        self.dropout, self.head = nn.Dropout(0.5 if shifts else 0.4), nn.Linear(2048, classes)
        if shifts:
            every = 2 if len(self.net.layer3) >= _DEEP_THIRD_STAGE else 1
            for stage in (self.net.layer1, self.net.layer2, self.net.layer3, self.net.layer4):
                for block in stage[::every]:
                    block.conv1 = nn.Sequential(_TemporalShift(clips), block.conv1)

    def forward(self, videos: torch.Tensor) -> torch.Tensor:
        features = self.dropout(self.net(videos.flatten(0, 1)))
        return self.head(features).unflatten(0, (-1, self.clips)).mean(dim=1)


class _TemporalShift(nn.Module):
    """Moves an eighth of the channels one clip back and an eighth one clip on (Lin et al. 2019)."""

    def __init__(self, clips: int) -> None:
        super().__init__()
        self.clips = clips

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        count, channels, height, width = images.shape
        videos = images.view(-1, self.clips, channels, height * width)
        fold = channels // _SHIFTED_SHARE
        back, on, still = videos[:, :, :fold], videos[:, :, fold : 2 * fold], videos[:, :, 2 * fold :]
        back = torch.cat((back[:, 1:], (back - back)[:, :1]), 1)
        on = torch.cat(((on - on)[:, :1], on[:, :-1]), 1)
        return torch.cat((back, on, still), 2).view(count, channels, height, width)
