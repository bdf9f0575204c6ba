"""The nets of mmsegmentation 0.19 whose training steps are rebuilt, from its modules and configs.

Synchronised batch norms are plain ones here, which keep the same.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from architectures import define_detection_operators
from torch import nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own convention


def resnet(name: str, **settings: Any) -> Any:
    """Build one of torchvision's ResNets."""
    define_detection_operators()
    import torchvision

    return torchvision.models.get_model(name, weights=None, **settings)


class Kept(torch.autograd.Function):
    """Keeps what ``softmax`` or ``log_softmax`` is given until its backward pass.

    Before torch 1.11 that took the input itself and not just its type (transformers' ``pytorch_utils.py`` tells the two
    signatures apart), so it was saved beside the output.
    """

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores as they are."""
        ctx.save_for_backward(scores)
        return scores.view_as(scores)

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient as it is."""
        return gradient


class Segmenter(nn.Module):
    """A dilated ResNet with a stem of three convolutions, a head on its last stage and an auxiliary one before it."""

    def __init__(self, backbone: str, head: str, classes: int) -> None:
        super().__init__()
        self.net = resnet(backbone, replace_stride_with_dilation=[False, True, True])
        self.net.fc = nn.Identity()
        self.net.conv1 = nn.Sequential(unit(3, 32, 3, stride=2), unit(32, 32, 3), nn.Conv2d(32, 64, 3, padding=1))
        self.head = {"PSPHead": _pyramid_head, "ASPPHead": _DilatedHead}[head](classes)
        self.auxiliary = nn.Sequential(unit(1024, 256, 3), nn.Dropout2d(0.1), nn.Conv2d(256, classes, 1))

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scores of the main head and of the auxiliary one."""
        net = self.net
        features = net.layer2(net.layer1(net.maxpool(net.relu(net.bn1(net.conv1(images))))))
        third = net.layer3(features)
        return self.head(net.layer4(third)), self.auxiliary(third)


class PooledPyramid(nn.Module):
    """PSPNet's pyramid of pooled features (Zhao et al. 2017), beside the features themselves and made 512 wide."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.pooled = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(scale), unit(inputs, 512, 1)) for scale in (1, 2, 3, 6)
        )
        self.bottleneck = unit(inputs + 4 * 512, 512, 3)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return a map of the same size."""
        pooled = [resized(branch(features), features) for branch in self.pooled]
        return self.bottleneck(torch.cat([features, *pooled], dim=1))


def _pyramid_head(classes: int) -> nn.Sequential:
    return nn.Sequential(PooledPyramid(2048), nn.Dropout2d(0.1), nn.Conv2d(512, classes, 1))


class _DilatedHead(nn.Module):
    """DeepLabV3's dilated convolutions side by side (Chen et al. 2017)."""

    def __init__(self, classes: int, *, inputs: int = 2048, width: int = 512) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.AdaptiveAvgPool2d(1), unit(inputs, width, 1))
        self.branches = nn.ModuleList(
            [unit(inputs, width, 1), *(unit(inputs, width, 3, dilation=rate) for rate in (12, 24, 36))]
        )
        self.bottleneck = unit(5 * width, width, 3)
        self.out = nn.Sequential(nn.Dropout2d(0.1), nn.Conv2d(width, classes, 1))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        image = resized(self.image(features), features)
        return self.out(self.bottleneck(torch.cat([image, *(branch(features) for branch in self.branches)], dim=1)))


def unit(
    inputs: int, outputs: int, size: int, *, stride: int = 1, dilation: int = 1, inplace: bool = True
) -> nn.Sequential:
    """Convolve, normalise and rectify."""
    padding = dilation * (size // 2)
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding, dilation, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=inplace))


def resized(small: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Scale a map to the size of another."""
    return F.interpolate(small, like.shape[2:], mode="bilinear", align_corners=False)


class SkippingNet(nn.Module):
    """U-Net (Ronneberger et al. 2015) of five stages with DeepLabV3's head, two classes and an auxiliary head."""

    def __init__(self) -> None:
        super().__init__()
        widths = [64, 128, 256, 512, 1024]
        self.down = nn.ModuleList(_double_unit(*pair) for pair in pairwise([3, *widths]))
        self.rise = nn.ModuleList(unit(deep, wide, 1) for wide, deep in pairwise(widths))
        self.join = nn.ModuleList(_double_unit(2 * width, width) for width in widths[:-1])
        self.head = _DilatedHead(2, inputs=64, width=16)
        self.auxiliary = nn.Sequential(unit(128, 64, 3), nn.Dropout2d(0.1), nn.Conv2d(64, 2, 1))

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scores of the main head and of the auxiliary one."""
        skipped = [self.down[0](images)]
        for stage in self.down[1:]:
            skipped.append(stage(F.max_pool2d(skipped[-1], 2)))
        features = [skipped.pop()]
        for rise, join, kept in zip(reversed(self.rise), reversed(self.join), reversed(skipped), strict=True):
            features.append(join(torch.cat([kept, rise(resized(features[-1], kept))], dim=1)))
        return self.head(features[-1]), self.auxiliary(features[-2])


def _double_unit(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(unit(inputs, outputs, 3), unit(outputs, outputs, 3))


class TwoPathNet(nn.Module):
    """BiSeNetV1 (Yu et al. 2018): a ResNet for context, a shallow path for space, and three heads.

    Its widths are those of the configs on ResNet-18; those on ResNet-50 are four times as wide.
    """

    def __init__(self, depth: int) -> None:
        super().__init__()
        wide = 1 if depth == 18 else 4
        narrow, middle, deep = 128 * wide, 256 * wide, 512 * wide
        self.net = resnet(f"resnet{depth}")
        self.net.fc = nn.Identity()
        self.refine16, self.refine32 = _Refinement(middle, narrow), _Refinement(deep, narrow)
        self.join16, self.join32 = unit(narrow, narrow, 3), unit(narrow, narrow, 3)
        self.mean = nn.Sequential(nn.AdaptiveAvgPool2d(1), unit(deep, narrow, 1))
        space = 64 * wide
        self.space = nn.Sequential(
            unit(3, space, 7, stride=2),
            unit(space, space, 3, stride=2),
            unit(space, space, 3, stride=2),
            unit(space, narrow, 1),
        )
        self.fused, self.attended = unit(2 * narrow, middle, 1), _attention(middle)
        self.heads = nn.ModuleList((_head(middle, middle), _head(narrow, space), _head(narrow, space)))

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        """Return the scores of the main head and of the two auxiliary ones."""
        net = self.net
        features8 = net.layer2(net.layer1(net.maxpool(net.relu(net.bn1(net.conv1(images))))))
        features16 = net.layer3(features8)
        features32 = net.layer4(features16)
        coarse = self.refine32(features32) + self.mean(features32)
        context16 = self.join32(F.interpolate(coarse, features16.shape[2:]))
        fine = self.refine16(features16) + context16
        context8 = self.join16(F.interpolate(fine, features8.shape[2:]))
        fused = self.fused(torch.cat([self.space(images), context8], dim=1))
        features = (fused * self.attended(fused) + fused, context8, context16)
        return [head(each) for head, each in zip(self.heads, features, strict=True)]


class _Refinement(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.unit, self.attended = unit(inputs, outputs, 3), _attention(outputs)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        features = self.unit(features)
        return features * self.attended(features)


def _attention(channels: int) -> nn.Sequential:
    convolution = nn.Conv2d(channels, channels, 1, bias=False)
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), convolution, nn.BatchNorm2d(channels), nn.Sigmoid())


def _head(inputs: int, inner: int) -> nn.Sequential:
    return nn.Sequential(unit(inputs, inner, 3), nn.Dropout2d(0.1), nn.Conv2d(inner, 19, 1))
