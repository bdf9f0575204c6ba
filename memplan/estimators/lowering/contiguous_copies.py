"""Copies that kernels make of non-contiguous operands, on the CPU and CUDA."""

from __future__ import annotations

from typing import Any

import torch
from torch._prims_common import suggest_memory_format

# Positions of the operands that each kernel makes contiguous (``expect_contiguous`` and ``contiguous`` in
# aten/src/ATen/native: layer_norm.cpp, SoftMax.cpp, Embedding.cpp and their CUDA counterparts).
_CONTIGUOUS_OPERANDS = {
    "aten.native_layer_norm": (0,),
    "aten.native_layer_norm_backward": (0, 1),
    "aten._fused_rms_norm": (0,),
    "aten._fused_rms_norm_backward": (0, 1),
    "aten._softmax": (0,),
    "aten._log_softmax": (0,),
    "aten._softmax_backward_data": (0, 1),
    "aten._log_softmax_backward_data": (0, 1),
    "aten.embedding_dense_backward": (0,),
}
# Positions of image and weight, which decide the layout, and of all operands converted to it (``Convolution.cpp``).
_CONVOLUTIONS = {"aten.convolution": ((0, 1), (0, 1)), "aten.convolution_backward": ((1, 2), (0, 1, 2))}


def copied_bytes(operator: str, args: tuple[Any, ...]) -> int:
    """Return the bytes of the operands that the kernel copies into another layout."""
    layout, places = torch.contiguous_format, _CONTIGUOUS_OPERANDS.get(operator, ())
    if operator in _CONVOLUTIONS:
        deciding, places = _CONVOLUTIONS[operator]
        layout = _layout([args[each] for each in deciding])
    return sum(
        args[each].numel() * args[each].element_size()
        for each in places
        if isinstance(args[each], torch.Tensor) and not args[each].is_contiguous(memory_format=layout)
    )


def _layout(deciding: list[torch.Tensor]) -> torch.memory_format:
    """Channels-last if image or weight is, except in one dimension (``determine_backend_memory_format``)."""
    suggested = (suggest_memory_format(each) for each in deciding)
    return next((each for each in suggested if each is not torch.contiguous_format), torch.contiguous_format)
