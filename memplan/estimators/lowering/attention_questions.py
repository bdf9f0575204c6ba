"""Whether a kernel of attention takes a call, as code may ask PyTorch itself, which would look for the card.

Nested tensors choose their kernel by it (``torch/nested/_internal/sdpa.py``).
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from memplan.estimators.lowering.attention import Backend, can_take

if TYPE_CHECKING:
    import torch
    from torch.backends.cuda import SDPAParams

_QUESTIONS = {
    Backend.FLASH: "can_use_flash_attention",
    Backend.EFFICIENT: "can_use_efficient_attention",
    Backend.CUDNN: "can_use_cudnn_attention",
}
_ASKING = ("torch.backends.cuda", "torch.nested._internal.sdpa")


def answer_about_attention(capability: tuple[int, int]) -> None:
    """Have PyTorch's own questions answered for a card of a compute capability, for the rest of this process."""
    for backend, name in _QUESTIONS.items():
        for module in filter(None, map(sys.modules.get, _ASKING)):
            setattr(module, name, partial(_answer, backend=backend, capability=capability))


def _answer(params: SDPAParams, debug: bool = False, *, backend: Backend, capability: tuple[int, int]) -> bool:  # noqa: ARG001 - torch's
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = (params.query, params.key, params.value)
    return can_take(
        backend,
        tensors,
        capability,
        mask=params.attn_mask,
        dropout=params.dropout,
        causal=params.is_causal,
        grouped=params.enable_gqa,
    )
