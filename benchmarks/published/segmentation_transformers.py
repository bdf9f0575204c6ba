"""The transformers of mmsegmentation 0.19 whose training steps are rebuilt, from its modules and configs."""

from __future__ import annotations

import math

import torch
from published.segmentation_nets import Kept, PooledPyramid, resized, unit
from torch import nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own convention


class PyramidTransformer(nn.Module):
    """SegFormer (Xie et al. 2021) with mmsegmentation's head, whose four projections are normalised and rectified."""

    def __init__(self, widths: list[int], depths: list[int]) -> None:
        super().__init__()
        drops = iter(torch.linspace(0, 0.1, sum(depths)).tolist())
        heads, reductions, patches = (1, 2, 5, 8), (8, 4, 2, 1), ((7, 4), (3, 2), (3, 2), (3, 2))
        stages = zip([3, *widths], widths, depths, heads, reductions, patches, strict=False)
        self.stages = nn.ModuleList(
            _Stage(inputs, width, patch, [_MixingLayer(width, count, reduction, next(drops)) for _ in range(depth)])
            for inputs, width, depth, count, reduction, patch in stages
        )
        self.projections = nn.ModuleList(unit(width, 256, 1) for width in widths)
        self.out = nn.Sequential(unit(4 * 256, 256, 1), nn.Dropout2d(0.1), nn.Conv2d(256, 150, 1))

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor]:
        """Return the scores of the one head."""
        features = [images]
        for stage in self.stages:
            features.append(stage(features[-1]))
        projected = [project(each) for project, each in zip(self.projections, features[1:], strict=True)]
        return (self.out(torch.cat([resized(each, projected[0]) for each in projected], dim=1)),)


class PlainTransformer(nn.Module):
    """A vision transformer of 12 layers (Touvron et al. 2021, DeiT) under UPerNet's head (Xiao et al. 2018).

    Args:
        width: of its tokens; heads are 64 wide.
        has_neck: whether maps of four sizes are made of its four maps of one size.
        is_normalised: whether its last tokens are.
    """

    def __init__(self, width: int, *, has_neck: bool, is_normalised: bool) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.first, self.places = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.zeros(1, 1025, width))
        self.layers = nn.ModuleList(_Layer(width, width // 64, 1, drop) for drop in torch.linspace(0, 0.1, 12).tolist())
        self.after = nn.LayerNorm(width) if is_normalised else nn.Identity()
        self.neck = _Neck(width) if has_neck else nn.Identity()
        self.head = _UnifiedHead(width)
        self.auxiliary = nn.Sequential(unit(width, 256, 3), nn.Dropout2d(0.1), nn.Conv2d(256, 150, 1))

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scores of the main head and of the auxiliary one."""
        patches = self.patches(images)
        first = self.first.expand(len(images), -1, -1)
        tokens = torch.cat([first, patches.flatten(2).transpose(1, 2)], dim=1) + self.places
        taken = []
        for number, layer in enumerate(self.layers, 1):
            tokens = layer(tokens) if number < len(self.layers) else self.after(layer(tokens))
            if number % 3 == 0:
                taken.append(_as_map(tokens[:, 1:], patches.shape[2:]))
        features = self.neck(taken)
        return self.head(features), self.auxiliary(features[-1])


class _Neck(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(4))
        self.after = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(4))

    def forward(self, features: list[torch.Tensor]) -> list[torch.Tensor]:
        features = [before(each) for before, each in zip(self.before, features, strict=True)]
        scaled = zip(self.after, features, (4, 2, 1, 0.5), strict=True)
        return [after(F.interpolate(each, scale_factor=scale, mode="bilinear")) for after, each, scale in scaled]


class _UnifiedHead(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(unit(width, 512, 1, inplace=False) for _ in range(3))
        self.top = PooledPyramid(width)
        self.smooth = nn.ModuleList(unit(512, 512, 3, inplace=False) for _ in range(3))
        self.out = nn.Sequential(unit(4 * 512, 512, 3), nn.Dropout2d(0.1), nn.Conv2d(512, 150, 1))

    def forward(self, features: list[torch.Tensor]) -> torch.Tensor:
        laterals = [self.top(features[-1])]
        for lateral, each in zip(reversed(self.lateral), reversed(features[:-1]), strict=True):
            map_ = lateral(each)
            laterals.insert(0, map_ + resized(laterals[0], map_))
        fine, *coarse = [smooth(each) for smooth, each in zip(self.smooth, laterals[:-1], strict=True)]
        return self.out(torch.cat([fine, *(resized(each, fine) for each in (*coarse, laterals[-1]))], dim=1))


class _Stage(nn.Module):
    def __init__(self, inputs: int, width: int, patch: tuple[int, int], layers: list[nn.Module]) -> None:
        super().__init__()
        size, stride = patch
        self.patches = nn.Conv2d(inputs, width, size, stride, size // 2)
        self.before, self.layers, self.after = nn.LayerNorm(width), nn.ModuleList(layers), nn.LayerNorm(width)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        patches = self.patches(features)
        tokens = self.before(patches.flatten(2).transpose(1, 2))
        for layer in self.layers:
            tokens = layer(tokens, patches.shape[2:])
        return _as_map(self.after(tokens), patches.shape[2:])


class _Layer(nn.Module):
    """Attention, then a feed-forward net on each token, in some steps left out for a sample."""

    def __init__(self, width: int, heads: int, reduction: int, drop: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList((nn.LayerNorm(width), nn.LayerNorm(width)))
        self.attention, self.drop = _ReducedAttention(width, heads, reduction), drop
        self.fed = self.feeder(width, 4 * width)

    def feeder(self, width: int, inner: int) -> nn.Module:
        """Return the feed-forward net."""
        return nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))

    def feed(self, tokens: torch.Tensor, _size: torch.Size | None) -> torch.Tensor:
        """Apply it."""
        return self.fed(tokens)

    def forward(self, tokens: torch.Tensor, size: torch.Size | None = None) -> torch.Tensor:
        tokens = tokens + self._dropped(self.attention(self.norms[0](tokens), size))
        return tokens + self._dropped(self.feed(self.norms[1](tokens), size))

    def _dropped(self, tokens: torch.Tensor) -> torch.Tensor:
        if not self.drop:
            return tokens
        kept = torch.rand(len(tokens), 1, 1) + (1 - self.drop)
        return tokens.div(1 - self.drop) * kept.floor()


class _MixingLayer(_Layer):
    """SegFormer's, whose feed-forward net mixes neighbours by a convolution of each channel."""

    def feeder(self, width: int, inner: int) -> nn.Module:
        mixing = nn.Conv2d(inner, inner, 3, padding=1, groups=inner)
        return nn.Sequential(nn.Conv2d(width, inner, 1), mixing, nn.GELU(), nn.Conv2d(inner, width, 1))

    def feed(self, tokens: torch.Tensor, size: torch.Size | None) -> torch.Tensor:
        return _as_tokens(self.fed(_as_map(tokens, size)))


class _ReducedAttention(nn.Module):
    """Attention to a map made smaller, through ``nn.MultiheadAttention`` of torch 1.9 with the batch first.

    That turned query, key and value round one by one, so that no two were the same tensor any more, and each of its
    three linear layers keeps a contiguous copy of what it was given (``torch/nn/modules/activation.py``; today's says
    that it takes care of this).
    """

    def __init__(self, width: int, heads: int, reduction: int) -> None:
        super().__init__()
        self.heads, self.head_width = heads, width // heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.reduced = None if reduction == 1 else nn.Conv2d(width, width, reduction, reduction)
        self.norm = None if reduction == 1 else nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor, size: torch.Size | None) -> torch.Tensor:
        others = tokens
        if self.reduced is not None and self.norm is not None:
            others = self.norm(_as_tokens(self.reduced(_as_map(tokens, size))))
        query = self._heads(self.query(tokens.transpose(0, 1)))
        key, value = self._heads(self.key(others.transpose(0, 1))), self._heads(self.value(others.transpose(0, 1)))
        scores = torch.bmm(query / math.sqrt(self.head_width), key.transpose(1, 2))
        attended = torch.bmm(F.softmax(Kept.apply(scores), dim=-1), value)
        together = attended.transpose(0, 1).contiguous().view(tokens.shape[1], *tokens.shape[::2])
        return self.out(together).transpose(0, 1)

    def _heads(self, projected: torch.Tensor) -> torch.Tensor:
        length, size, _ = projected.shape
        return projected.view(length, size * self.heads, self.head_width).transpose(0, 1)


def _as_map(tokens: torch.Tensor, size: torch.Size | None) -> torch.Tensor:
    return tokens.transpose(1, 2).reshape(len(tokens), -1, *(size or ()))


def _as_tokens(features: torch.Tensor) -> torch.Tensor:
    return features.flatten(2).transpose(1, 2).contiguous()
