"""A small U-Net with batch normalisation."""

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class ConvBlock(nn.Sequential):
    """Twice: 3x3 convolution, batch normalisation, ReLU."""

    def __init__(self, in_channels, out_channels):
        super().__init__(
            nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )


class SmallUNet(nn.Module):
    """Encoder and decoder with skip connections, at half the input's height and width.

    ``with_cp`` recomputes the blocks' activations in the backward pass instead of keeping them.
    """

    def __init__(self, in_channels, base_channels, num_stages, with_cp=False):
        super().__init__()
        widths = [base_channels * 2**stage for stage in range(num_stages)]
        self.stem = nn.Conv2d(in_channels, base_channels, 3, stride=2, padding=1)
        self.encoder = nn.ModuleList(map(ConvBlock, [base_channels, *widths], widths))
        self.upsample = nn.ModuleList(
            nn.ConvTranspose2d(wide, narrow, 2, stride=2) for narrow, wide in pairwise(widths)
        )
        self.decoder = nn.ModuleList(ConvBlock(2 * narrow, narrow) for narrow in widths[:-1])
        self.out_channels = base_channels
        self.with_cp = with_cp

    def forward(self, images):
        skips = [self._run(self.encoder[0], self.stem(images))]
        for block in self.encoder[1:]:
            skips.append(self._run(block, functional.max_pool2d(skips[-1], 2)))
        features = skips.pop()
        for upsample, block in zip(reversed(self.upsample), reversed(self.decoder), strict=True):
            features = self._run(block, torch.cat([upsample(features), skips.pop()], dim=1))
        return features

    def _run(self, block, features):
        if self.with_cp and self.training:
            return checkpoint(block, features, use_reentrant=False)
        return block(features)


class FCNHead(nn.Module):
    """One score per class and pixel, and the cross-entropy of labelled pixels."""

    def __init__(self, in_channels, num_classes, ignore_index):
        super().__init__()
        self.classify = nn.Conv2d(in_channels, num_classes, 1)
        self.ignore_index = ignore_index

    def forward(self, features):
        return functional.interpolate(self.classify(features), scale_factor=2.0, mode="bilinear")

    def loss(self, scores, labels):
        return functional.cross_entropy(scores.float(), labels, ignore_index=self.ignore_index)


class EncoderDecoder(nn.Module):
    """A backbone and the head that reads it."""

    def __init__(self, backbone, decode_head):
        super().__init__()
        self.backbone = _build(backbone)
        self.decode_head = _build(decode_head, in_channels=self.backbone.out_channels)

    def forward(self, images):
        return self.decode_head(self.backbone(images))

    def loss(self, images, labels):
        return self.decode_head.loss(self(images), labels)


MODELS = {each.__name__: each for each in (EncoderDecoder, SmallUNet, FCNHead)}


def build_model(config):
    """Make the model that a config's ``model`` describes."""
    return _build(config["model"])


def _build(settings, **known):
    return MODELS[settings["type"]](**{key: settings[key] for key in settings if key != "type"}, **known)
