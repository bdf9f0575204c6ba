"""Convolutions of nets, and calls of them that cuDNN can be asked about."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import torch
from detection_operators import define_detection_operators
from torch import nn

from memplan.estimators.temporaries.convolutions import Convolution, Pass

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_BYTES = 8 << 30  # of one operand in single precision


@dataclass(frozen=True, slots=True)
class Layer:
    """One convolution of a net: the shape of its input without the batch, its weight, and its window."""

    channels: int
    sides: tuple[int, ...]
    weight_shape: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def groups(self) -> int:
        """In how many groups the channels are convolved."""
        return self.channels // self.weight_shape[1]

    @property
    def is_in_groups(self) -> bool:
        """Whether channels are convolved in groups of several."""
        return self.groups > 1 and not self.is_depthwise

    @property
    def is_depthwise(self) -> bool:
        """Whether every channel is convolved by itself."""
        return self.weight_shape[1] == 1 < self.channels

    def sides_scaled(self, factor: float) -> tuple[int, ...]:
        """Return the sides of an image that is so many times as wide and high."""
        return tuple(max(round(side * factor), 1) for side in self.sides)

    def call(
        self, batch: int, sides: tuple[int, ...], kernel: Pass, dtype: str, *, channels_last: bool
    ) -> Convolution | None:
        """Return a pass of it; None where images are too small for the window, or larger than a card would hold."""
        windows = zip(sides, self.padding, self.dilation, self.weight_shape[2:], self.stride, strict=True)
        made = tuple((side + 2 * pad - gap * (width - 1) - 1) // step + 1 for side, pad, gap, width, step in windows)
        shapes = (batch, self.channels, *sides), (batch, self.weight_shape[0], *made)
        if min(made) < 1 or max(map(prod, shapes)) * 4 > _MOST_BYTES:
            return None
        return Convolution(
            kernel=kernel,
            input_shape=shapes[0],
            weight_shape=self.weight_shape,
            output_shape=shapes[1],
            dtype=dtype,
            channels_last=channels_last,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
        )


def layers_of(names: Iterable[str]) -> list[Layer]:
    """Return the different convolutions of timm's nets at their own image sizes, without memory or arithmetic."""
    define_detection_operators()
    import timm

    found: dict[Layer, None] = {}

    def note(module: nn.Module, inputs: tuple[torch.Tensor, ...], _output: object) -> None:
        assert isinstance(module, nn.Conv2d)  # noqa: S101 - only these are hooked
        if not isinstance(module.padding, str):
            windows = (module.stride, module.padding, module.dilation)
            found[Layer(inputs[0].shape[1], tuple(inputs[0].shape[2:]), tuple(module.weight.shape), *windows)] = None

    for name in names:
        net = timm.create_model(name).to("meta")
        for module in net.modules():
            if type(module) is nn.Conv2d:
                module.register_forward_hook(note)
        net(torch.empty(2, *net.pretrained_cfg["input_size"], device="meta"))
    return list(found)
