"""Softmax on a card, which reads half precision and answers in single without a copy in between.

Sources: ``softmax`` and ``log_softmax`` in ``aten/src/ATen/native/SoftMax.cpp`` of torch 2.13; bfloat16 is
converted first.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Callable


def softmaxes() -> dict[str, Callable[..., torch.Tensor]]:
    """Return the implementations by operator."""
    aten = torch.ops.aten
    return {
        "softmax.int": partial(_along, aten._softmax),  # noqa: SLF001 - the kernels behind them are private
        "log_softmax.int": partial(_along, aten._log_softmax),  # noqa: SLF001 - likewise
    }


def _along(kernel: Any, tensor: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    widens = tensor.dtype is torch.float16 and dtype is torch.float32
    if not widens or not isinstance(tensor, FakeTensor):  # the CPU's kernels cannot
        tensor = tensor if dtype is None else tensor.to(dtype)
        widens = False
    result: torch.Tensor = kernel(tensor, dim, widens)
    return result
