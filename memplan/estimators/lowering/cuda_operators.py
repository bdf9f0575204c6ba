"""Composite operators that run other kernels on CUDA tensors, replaced by those of the target card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from memplan.estimators.fake_tensors.dispatcher import KernelOverrides
from memplan.estimators.lowering.attention import attend
from memplan.estimators.lowering.ctc_loss import ctc_loss
from memplan.estimators.lowering.cudnn_recurrence import recurrences
from memplan.estimators.lowering.normalisation import batch_norm, group_norm, rms_norm
from memplan.estimators.lowering.packed_sequences import pack, pad
from memplan.estimators.lowering.recurrent_cells import gru_cell, lstm_cell
from memplan.estimators.lowering.softmax import softmaxes

if TYPE_CHECKING:
    from collections.abc import Callable

_KEY = "AutogradCPU"


class CudaOperators:
    """Replaces composite operators by their CUDA implementations, for the rest of this process.

    Args:
        capability: compute capability of the card.
    """

    def __init__(self, capability: tuple[int, int]) -> None:
        self._kernels = KernelOverrides(_KEY)
        self._capability = capability

    def install(self) -> None:
        """Register the replacements."""
        replacements: dict[str, Callable[..., Any]] = {
            "scaled_dot_product_attention": self._attention,
            "dropout": _dropout,
            "batch_norm": batch_norm,
            "group_norm": group_norm,
            "ctc_loss.IntList": ctc_loss,
            "ctc_loss.Tensor": ctc_loss,
            "_pack_padded_sequence": pack,
            "_pad_packed_sequence": pad,
            "lstm_cell": lstm_cell,
            "gru_cell": gru_cell,
            **recurrences(),
            **softmaxes(),
        }
        for name, function in replacements.items():
            self._kernels.replace(name, function)
        self._kernels.wrap("rms_norm", rms_norm)

    def _attention(  # noqa: PLR0917 - the operator's own signature
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        return attend(
            query,
            key,
            value,
            attn_mask,
            dropout=dropout_p,
            causal=is_causal,
            scale=scale,
            grouped=enable_gqa,
            capability=self._capability,
        )


def _dropout(tensor: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    # aten/src/ATen/native/Dropout.cpp: the fused kernel and its one-byte mask where 0 < p < 1, as for a CUDA tensor.
    if not train or p == 0 or tensor.numel() == 0:
        return tensor
    if p == 1:
        return tensor.mul(torch.zeros((), dtype=tensor.dtype))
    dropped: torch.Tensor = torch.ops.aten.native_dropout(tensor, p, train)[0]
    return dropped
