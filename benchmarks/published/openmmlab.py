"""Model zoos of mmaction2 0.x and mmsegmentation 0.19: allocated peaks on V100 of 32 GB, torch 1.3 to 1.9.

The loop is mmcv's: SGD with momentum, gradients filled with zeros and so never freed, data parallel with flat buckets
for the gradients, gradients clipped (mmaction). Single precision is single precision on a V100, which has no TF32.
mmaction2 tells whole MiB. mmsegmentation tells one or two decimals of GB, whose unit its documents leave open: taken as
GiB, all rows whose peak lies in the loss, which needs no workspace, agree with the rebuilt steps in every digit told
but those of COCO-Stuff. Its documents say that cuDNN's benchmark mode was off, its configs that it is on: what the
search of algorithms would try on the widest convolutions, many GiB, is not in these figures.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from architectures import define_detection_operators
from published.rows import Peak, Row, table
from torch import nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own convention

from memplan.recipe import Recipe
from memplan.units import GIB, MIB
from memplan.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        settings = (f"resnet{cells['depth']}", cells["head"], int(cells["classes"]), (height, width))
        yield Row(
            key=f"mmseg-{cells['config']}",
            family="mmsegmentation",
            model=cells["config"],
            workload=functools.partial(segmenter, *settings),
            trace_key=f"mmseg {settings} {cells['precision']}",
            recipe=Recipe(micro_batch_size=int(cells["images"]), precision=cells["precision"], world_size=4),
            device=_DEVICE,
            peak=Peak.ALLOCATED,
            counts_blas_workspaces=False,
            measured_mib=GIB // MIB * float(cells["gb"]),
        )


def pyramid_rows() -> Iterator[Row]:
    """Yield mmsegmentation's SegFormer, as transformers builds it with the decoder and dropped paths of the configs."""
    for cells in table("segformer"):
        name, widths, depths = (
            cells["config"],
            *([int(each) for each in cells[key].split()] for key in ("widths", "depths")),
        )
        yield Row(
            key=f"mmseg-{name}",
            family="segformer",
            model=name,
            workload=functools.partial(pyramid, widths, depths),
            trace_key=f"segformer {name}",
            recipe=Recipe(micro_batch_size=int(cells["images"]), world_size=8),
            device=_DEVICE,
            peak=Peak.ALLOCATED,
            counts_blas_workspaces=False,
            measured_mib=GIB // MIB * float(cells["gb"]),
        )


def pyramid(widths: list[int], depths: list[int]) -> Workload:
    """Label every pixel of 512 x 512 by SegFormer, whose softmaxes keep their inputs, those of attention too."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        with _kept_inputs_of_softmax():
            scores = F.interpolate(model(batch[0]).logits, (512, 512), mode="bilinear", align_corners=False)
            return F.cross_entropy(_Kept.apply(scores), batch[1], ignore_index=255)

    return Workload(
        model=functools.partial(_segformer, widths, depths),
        batch=lambda size: (torch.zeros(size, 3, 512, 512), torch.zeros(size, 512, 512, dtype=torch.long)),
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=6e-5, foreach=False),
        zero_grad_set_to_none=False,
    )


def _segformer(widths: list[int], depths: list[int]) -> nn.Module:
    define_detection_operators()
    import transformers

    settings = transformers.SegformerConfig(
        hidden_sizes=widths, depths=depths, decoder_hidden_size=256, drop_path_rate=0.1, num_labels=150
    )
    return transformers.SegformerForSemanticSegmentation(settings)


@contextmanager
def _kept_inputs_of_softmax() -> Iterator[None]:
    softmax = F.softmax
    F.softmax = lambda scores, *args, **kwargs: softmax(_Kept.apply(scores), *args, **kwargs)
    try:
        yield
    finally:
        F.softmax = softmax


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


def segmenter(backbone: str, head: str, classes: int, crop: tuple[int, int]) -> Workload:
    """Label every pixel of a crop, with an auxiliary head."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        scores = [F.interpolate(each, crop, mode="bilinear", align_corners=False) for each in model(batch[0])]
        main, auxiliary = (F.cross_entropy(_Kept.apply(each), batch[1], ignore_index=255) for each in scores)
        return main + 0.4 * auxiliary

    return Workload(
        model=functools.partial(_Segmenter, backbone, head, classes),
        batch=lambda size: (torch.zeros(size, 3, *crop), torch.zeros(size, *crop, dtype=torch.long)),
        loss=loss,
        optimizer=_momentum,
        zero_grad_set_to_none=False,
    )


def _momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=5e-4, foreach=False)


def _resnet(name: str, **settings: Any) -> Any:
    define_detection_operators()
    import torchvision

    return torchvision.models.get_model(name, weights=None, **settings)


class _Recognizer(nn.Module):
    def __init__(self, backbone: str, clips: int, classes: int, *, shifts: bool) -> None:
        super().__init__()
        self.net = _resnet(backbone)
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


class _Kept(torch.autograd.Function):
    """Keeps what ``softmax`` or ``log_softmax`` is given until its backward pass.

    Before torch 1.11 that took the input itself and not just its type (transformers' ``pytorch_utils.py`` tells the two
    signatures apart), so it was saved beside the output.
    """

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(scores)
        return scores.view_as(scores)

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class _Segmenter(nn.Module):
    """A dilated ResNet with a stem of three convolutions, a head on its last stage and an auxiliary one before it."""

    def __init__(self, backbone: str, head: str, classes: int) -> None:
        super().__init__()
        self.net = _resnet(backbone, replace_stride_with_dilation=[False, True, True])
        self.net.fc = nn.Identity()
        self.net.conv1 = nn.Sequential(_unit(3, 32, 3, stride=2), _unit(32, 32, 3), nn.Conv2d(32, 64, 3, padding=1))
        self.head = {"PSPHead": _PyramidHead, "ASPPHead": _DilatedHead}[head](classes)
        self.auxiliary = nn.Sequential(_unit(1024, 256, 3), nn.Dropout2d(0.1), nn.Conv2d(256, classes, 1))

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        net = self.net
        features = net.layer2(net.layer1(net.maxpool(net.relu(net.bn1(net.conv1(images))))))
        third = net.layer3(features)
        return self.head(net.layer4(third)), self.auxiliary(third)


class _PyramidHead(nn.Module):
    """PSPNet's pyramid of pooled features (Zhao et al. 2017)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.pooled = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(scale), _unit(2048, 512, 1)) for scale in (1, 2, 3, 6)
        )
        self.bottleneck = _unit(2048 + 4 * 512, 512, 3)
        self.out = nn.Sequential(nn.Dropout2d(0.1), nn.Conv2d(512, classes, 1))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        pooled = [_resized(branch(features), features) for branch in self.pooled]
        return self.out(self.bottleneck(torch.cat([features, *pooled], dim=1)))


class _DilatedHead(nn.Module):
    """DeepLabV3's dilated convolutions side by side (Chen et al. 2017)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.AdaptiveAvgPool2d(1), _unit(2048, 512, 1))
        self.branches = nn.ModuleList(
            [_unit(2048, 512, 1), *(_unit(2048, 512, 3, dilation=rate) for rate in (12, 24, 36))]
        )
        self.bottleneck = _unit(5 * 512, 512, 3)
        self.out = nn.Sequential(nn.Dropout2d(0.1), nn.Conv2d(512, classes, 1))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        image = _resized(self.image(features), features)
        return self.out(self.bottleneck(torch.cat([image, *(branch(features) for branch in self.branches)], dim=1)))


def _unit(inputs: int, outputs: int, size: int, *, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    padding = dilation * (size // 2)
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding, dilation, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


def _resized(small: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return F.interpolate(small, like.shape[2:], mode="bilinear", align_corners=False)
