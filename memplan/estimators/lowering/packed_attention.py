"""Attention to sequences that follow each other without padding (``torch/nn/attention/varlen.py``).

It runs PyTorch's flash attention; from torch 2.14 on cuDNN on Hopper and Blackwell, where that takes the call. What
cuDNN 9.24 asks for there are numbers of its own answers, in which it describes every sequence to the card.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memplan.estimators.lowering.temporary_bytes import FP32_BYTES, NO_TEMPORARIES, TemporaryBytes
from memplan.estimators.lowering.torch_release import TORCH_RELEASE
from memplan.training.half_precision import HALF_TYPES
from memplan.units import KIB

if TYPE_CHECKING:
    import torch

    from memplan.estimators.lowering.flash_attention import FlashKernels
    from memplan.estimators.lowering.temporary_bytes import Rule

_WITH_CUDNN = (9, 10)  # major compute capabilities
_SHORT = 128  # positions up to which flash attention is faster
_WIDTH_STEP = 8
_WHOLE_WINDOW = [-1, -1]
_FORWARD_BYTES = 17 * KIB
_DESCRIPTION_BYTES, _DESCRIPTIONS_OF_SEQUENCE, _OTHER_DESCRIPTIONS = 128, 3, 7


@dataclass(frozen=True, slots=True)
class PackedAttention:
    """The kernels on one card.

    Args:
        capability: compute capability of the card.
        flash: PyTorch's flash attention on it.
    """

    capability: tuple[int, int]
    flash: FlashKernels

    def rules(self) -> dict[str, Rule]:
        """Return the rules by operator."""
        return {"torch_attn._varlen_attn": self._forward, "torch_attn._varlen_attn_backward": self._backward}

    def _forward(self, args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
        is_grouped = len(args) > 10 and bool(args[10])
        on_cudnn = not is_grouped and self._runs_on_cudnn(*args[:3], longest=args[5], window=_window(args, place=9))
        return TemporaryBytes(after_results=(_FORWARD_BYTES,)) if on_cudnn else NO_TEMPORARIES

    def _backward(self, args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
        """Fp32 accumulator of the query's gradient and its row sums, of each sequence as long as the longest."""
        longest = args[8]
        if not self._runs_on_cudnn(*args[1:4], longest=longest, window=_window(args, place=13)):
            return self.flash.packed_backward(args)
        query: torch.Tensor = args[1]
        sequences = len(args[6]) - 1
        rows = sequences * query.shape[1] * longest
        descriptions = _DESCRIPTIONS_OF_SEQUENCE * sequences + _OTHER_DESCRIPTIONS
        workspace_bytes = rows * (query.shape[2] + 1) * FP32_BYTES + descriptions * _DESCRIPTION_BYTES
        return TemporaryBytes(after_results=(workspace_bytes,))

    def _runs_on_cudnn(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, longest: int, window: list[int]
    ) -> bool:
        return (
            TORCH_RELEASE >= (2, 14)
            and self.capability[0] in _WITH_CUDNN
            and longest > _SHORT
            and query.dtype in HALF_TYPES
            and query.shape[-1] % _WIDTH_STEP == 0
            and value.shape[-1] % _WIDTH_STEP == 0
            and query.shape[-2] == key.shape[-2]
            and window == _WHOLE_WINDOW
        )


def _window(args: tuple[Any, ...], *, place: int) -> list[int]:
    given = args[place] if len(args) > place else None
    return _WHOLE_WINDOW if given is None else list(given)
