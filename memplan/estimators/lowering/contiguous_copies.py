"""Copies that a kernel makes of operands that are not contiguous, on the CPU as on CUDA."""

from __future__ import annotations

from typing import Any

import torch

# Positions of the operands each kernel asks to be contiguous (``expect_contiguous`` and ``contiguous`` in
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


def copied_bytes(operator: str, args: tuple[Any, ...]) -> int:
    """Return the bytes of the operands that the kernel copies because they are not contiguous."""
    return sum(
        args[each].numel() * args[each].element_size()
        for each in _CONTIGUOUS_OPERANDS.get(operator, ())
        if isinstance(args[each], torch.Tensor) and not args[each].is_contiguous()
    )
