"""Copies that kernels make of operands that lie in another layout than they read, on any device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch._prims_common import suggest_memory_format

from memplan.estimators.lowering.temporary_bytes import TemporaryBytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memplan.estimators.lowering.temporary_bytes import Rule


def contiguous_first(operands: int) -> Rule:
    """Return the rule for a kernel that makes its first operands contiguous before its results exist."""
    return lambda args, _result: TemporaryBytes(throughout=copies(args[:operands]))


# ``expect_contiguous`` and ``contiguous`` in aten/src/ATen/native: layer_norm.cpp, Embedding.cpp and what is in cuda.
COPIES_ON_ANY_DEVICE = dict.fromkeys(("aten.native_layer_norm", "aten.embedding_dense_backward"), contiguous_first(1))


def convolution_layout(deciding: Sequence[torch.Tensor]) -> torch.memory_format:
    """Return the layout of a convolution, given image and weight.

    Channels-last if either is, except in one dimension (``determine_backend_memory_format`` in ``Convolution.cpp``).
    """
    suggested = (suggest_memory_format(each) for each in deciding)
    return next((each for each in suggested if each is not torch.contiguous_format), torch.contiguous_format)


def laid_out_first(*operands: torch.Tensor) -> TemporaryBytes:
    """Return copies of a convolution's operands, image and weight last, in its layout before the results exist.

    By kernels of ATen on any device (``Convolution.cpp``, ``DepthwiseConv2d.cu``).
    """
    return TemporaryBytes(throughout=copies(operands, convolution_layout(operands[-2:])))


def copies(
    operands: Iterable[torch.Tensor | None], layout: torch.memory_format = torch.contiguous_format
) -> tuple[int, ...]:
    """Return the bytes of each copy that is made of operands to have them in a layout."""
    return tuple(
        each.numel() * each.element_size()
        for each in operands
        if isinstance(each, torch.Tensor) and not each.is_contiguous(memory_format=layout)
    )


def copies_by_position(*operands: torch.Tensor) -> tuple[int, ...]:
    """Return the bytes of each copy of attention's operands that is made to read them by position, then by head."""
    return copies(each.transpose(1, 2) for each in operands)
