"""What losses take inside on any device, because their kernels are made of smaller ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

LOGITS_ENTROPY = "aten.binary_cross_entropy_with_logits"


def logits_entropy_bytes(args: tuple[Any, ...], result: torch.Tensor) -> int:
    """Return the logarithm of the sigmoid and the weighted logits (``aten/src/ATen/native/Loss.cpp``).

    Where nothing is reduced, the second of them is the result.
    """
    logits: torch.Tensor = args[0]
    return 2 * logits.numel() * logits.element_size() - result.numel() * result.element_size()
