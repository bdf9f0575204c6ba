"""Tensors without values, for rules that look at shape, type and layout alone."""

from __future__ import annotations

import torch


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def in_channels_last(image: torch.Tensor) -> torch.Tensor:
    return image.contiguous(memory_format=torch.channels_last)
