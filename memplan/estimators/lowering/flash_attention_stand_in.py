"""Stand-ins for functions of the flash_attn package where it is not installed, for models of transformers on a card.

The package runs on cards alone, so that who plans for one seldom has it. Its kernels are those of PyTorch's flash
attention, whose operators stand for them: for sequences of one length, and for packed ones from PyTorch 2.10 on. Of its
versions only the second has a stand-in, and of its functions those that training calls.
"""

from __future__ import annotations

import importlib.util
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from memplan.estimators.fake_tensors.replaced import replaced
from memplan.estimators.lowering.attention import flash_attention
from memplan.estimators.lowering.torch_release import TORCH_RELEASE
from memplan.late_imports import when_imported
from memplan.training.half_precision import HALF_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    Capability = tuple[int, int]

_PACKAGE = "flash_attn"
_ITS_USER = "transformers.modeling_flash_attention_utils"
_NAME, _VERSION = "flash_attention_2", 2
_OLDEST: Capability = (8, 0)
_NOTE = "flash_attn is not installed here: PyTorch's own flash attention is counted in its place"
_NO_PACKED_KERNEL = (
    "flash_attn is not installed here, and its kernel for packed and padded sequences is in PyTorch from PyTorch 2.10 "
    "on: install either, or ask for attn_implementation='sdpa'"
)


class FlashAttentionStandIn:
    """Offers transformers the package's functions, and knows whether they were called.

    Args:
        capability: compute capability of the card.
    """

    def __init__(self, capability: Capability) -> None:
        self._capability = capability
        self._was_called = False

    @property
    def notes(self) -> tuple[str, ...]:
        """Say that the stand-in was used, where it was."""
        return (_NOTE,) if self._was_called else ()

    @contextmanager
    def offered(self) -> Iterator[None]:
        """Offer the functions while the context is open, unless the package itself is there."""
        if importlib.util.find_spec(_PACKAGE) is not None:
            yield
            return
        with ExitStack() as stack, when_imported(_ITS_USER, lambda module: self._offer_to(module, stack)):
            yield

    def _offer_to(self, user: ModuleType, stack: ExitStack) -> None:
        versions = getattr(user, "FLASH_ATTENTION_COMPATIBILITY_MATRIX", {})
        importing = getattr(user, "_lazy_imports", None)
        if _VERSION not in versions or importing is None:  # another release of transformers
            return

        def imports(implementation: str | None, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
            if implementation != _NAME:
                found: tuple[Any, ...] = importing(implementation, *args, **kwargs)
                return found
            return self.equal_lengths, self.packed, None, user._pad_input, user._unpad_input  # noqa: SLF001 - its own

        stack.enter_context(replaced(user, "_lazy_imports", imports))
        requirements = versions[_VERSION]
        stack.callback(requirements.update, dict(requirements))
        requirements.update(general_availability_check=_yes, supported_devices=((_yes, "cuda"),))

    # What changes no allocation, as windows do, they do not take: transformers gives only what signatures name.
    def equal_lengths(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        causal: bool,
        softmax_scale: float | None = None,
        dropout_p: float = 0.0,
    ) -> torch.Tensor:
        """Stand for ``flash_attn_func``: samples, positions, heads and their numbers are the dimensions."""
        self._called_with(q)
        by_head = (q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return flash_attention(by_head, dropout=dropout_p, causal=causal, scale=softmax_scale).transpose(1, 2)

    def packed(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        causal: bool,
        softmax_scale: float | None = None,
    ) -> torch.Tensor:
        """Stand for ``flash_attn_varlen_func``: positions of all sequences, heads and their numbers.

        Raises:
            RuntimeError: this PyTorch has no kernel for it.
        """
        self._called_with(q)
        if TORCH_RELEASE < (2, 10):
            raise RuntimeError(_NO_PACKED_KERNEL)
        importlib.import_module("torch.nn.attention.varlen")  # which makes the operator
        attend = torch.ops.torch_attn._varlen_attn  # noqa: SLF001 - as above
        lengths = (int(max_seqlen_q), int(max_seqlen_k))
        # of all positions, but given, so that no cuDNN is taken
        window = ([lengths[1], lengths[1]],) if TORCH_RELEASE >= (2, 14) else ()
        attended: torch.Tensor = attend(q, k, v, cu_seqlens_q, cu_seqlens_k, *lengths, causal, softmax_scale, *window)[
            0
        ]
        return attended

    def _called_with(self, query: torch.Tensor) -> None:
        """Note a call, and refuse what the package refuses."""
        self._was_called = True
        if self._capability < _OLDEST:
            raise RuntimeError("FlashAttention only supports Ampere GPUs or newer")
        if query.dtype not in HALF_TYPES:
            raise RuntimeError("FlashAttention only supports fp16 and bf16 data types")


def _yes(*_: Any) -> bool:
    return True
