"""Composite operators that run other kernels on CUDA tensors, replaced by those of the target card."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from memplan.estimators.fake_tensors.dispatcher import KernelOverrides
from memplan.estimators.lowering.attention import attend
from memplan.estimators.lowering.attention_questions import answer_about_attention
from memplan.estimators.lowering.ctc_loss import ctc_loss
from memplan.estimators.lowering.cudnn_recurrence import recurrences
from memplan.estimators.lowering.normalisation import batch_norm, group_norm, renorm, rms_norm, rms_norm_backward
from memplan.estimators.lowering.packed_sequences import pack, pad
from memplan.estimators.lowering.recurrent_cells import gru_cell, lstm_cell
from memplan.estimators.lowering.softmax import softmaxes

if TYPE_CHECKING:
    from collections.abc import Callable

_KEY = "AutogradCPU"


def install_cuda_operators(capability: tuple[int, int], sm_count: int | None) -> None:
    """Replace composite operators by their CUDA implementations, for the rest of this process.

    Args:
        capability: compute capability of the card.
        sm_count: its multiprocessors; None where only its memory is known.
    """
    kernels = KernelOverrides(_KEY)
    replacements: dict[str, Callable[..., Any]] = {
        "scaled_dot_product_attention": partial(attend, capability=capability),
        "dropout": _dropout,
        "batch_norm": batch_norm,
        "group_norm": group_norm,
        "ctc_loss.IntList": ctc_loss,
        "ctc_loss.Tensor": ctc_loss,
        "_pack_padded_sequence": pack,
        "_pad_packed_sequence": pad,
        "lstm_cell": lstm_cell,
        "gru_cell": gru_cell,
        **recurrences(sm_count),
        **softmaxes(),
    }
    for name, function in replacements.items():
        kernels.replace(name, function)
    answer_about_attention(capability)
    kernels.wrap("rms_norm", rms_norm)
    kernels.wrap("renorm", renorm)
    KernelOverrides("CPU").replace("_fused_rms_norm_backward", rms_norm_backward)


def _dropout(tensor: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    # aten/src/ATen/native/Dropout.cpp: the fused kernel and its one-byte mask where 0 < p < 1, as for a CUDA tensor.
    if not train or p == 0 or tensor.numel() == 0:
        return tensor
    if p == 1:
        return tensor.mul(torch.zeros((), dtype=tensor.dtype))
    dropped: torch.Tensor = torch.ops.aten.native_dropout(tensor, p, train)[0]
    return dropped
