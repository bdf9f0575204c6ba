"""Attention on a card: the kernel selection of ``sdp_utils.cpp``, and the call of the selected kernel.

Sources: ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` and ``attention.cpp`` of torch 2.13, and what 2.11,
2.14 and 2.15 choose (``benchmarks/attention_choices.py``).
"""

# ruff: noqa: SLF001 - the kernels behind attention are private operators of torch

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn import functional

from memplan.estimators.lowering.determinism import requires_deterministic
from memplan.estimators.lowering.torch_release import TORCH_RELEASE
from memplan.training.half_precision import HALF_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    _QueryKeyValue = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

_FLASH_HEAD_MULTIPLE = 8
_EFFICIENT_MASK_MULTIPLE = 8
_CUDNN_DROPOUT_STEP = 16
_WITHOUT_BATCH = 3  # dimensions
_PREFERRING_CUDNN = (9, 10)  # major capabilities, with torch 2.13 and the cuDNN of its own wheels, above 9.15
_WIDTHS_IN_TRAINING = ((192, 128), (256, 256))  # beyond 128, of query and value
_adds_a_mask = ContextVar("_adds_a_mask", default=False)


class Backend(StrEnum):
    """Attention kernels of ``scaled_dot_product_attention``."""

    FLASH = "flash"
    EFFICIENT = "efficient"
    CUDNN = "cudnn"
    MATH = "math"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """The arguments that the selection depends on.

    Args:
        dtype: type of query, key and value.
        query_heads: heads of the query.
        key_heads: heads of key and value.
        query_length: positions of the query.
        key_length: positions of key and value.
        head_dim: elements of a head of query and key.
        value_dim: elements of a head of the value.
        has_mask: whether a mask tensor is given.
        trains_mask: whether a gradient of the mask is needed.
        dropout: probability.
        causal: whether the causal flag is set.
        trains: whether a gradient is needed.
        grouped: whether key and value heads may be shared by several query heads.
        is_dense: whether the last dimension of query, key, value and mask has a stride of one.
    """

    dtype: torch.dtype
    query_heads: int
    key_heads: int
    query_length: int
    key_length: int
    head_dim: int
    value_dim: int
    has_mask: bool
    trains_mask: bool
    dropout: float
    causal: bool
    trains: bool
    grouped: bool
    is_dense: bool


def choose_backend(call: AttentionCall, capability: tuple[int, int]) -> Backend:
    """Return the first kernel in the card's order of preference whose checks pass, else the math path."""
    usable = (each for each in _order_of_preference(capability) if _is_usable(each, call, capability))
    return next(usable, Backend.MATH)


def _is_usable(backend: Backend, call: AttentionCall, capability: tuple[int, int]) -> bool:
    enabled, suits = _CHECKS[backend]
    return enabled() and call.is_dense and suits(call, capability)


def _order_of_preference(capability: tuple[int, int]) -> tuple[Backend, ...]:
    """Return the fused kernels in the order in which they are tried (``priority_order``), the math path left out."""
    if capability[0] in _PREFERRING_CUDNN:
        return Backend.CUDNN, Backend.FLASH, Backend.EFFICIENT
    if torch.backends.cuda.math_sdp_enabled():  # type: ignore[no-untyped-call]  # untyped in torch
        return Backend.FLASH, Backend.EFFICIENT  # the math path comes before cuDNN, and takes every call
    return Backend.FLASH, Backend.EFFICIENT, Backend.CUDNN


def _suits_flash(call: AttentionCall, capability: tuple[int, int]) -> bool:
    # no gradients on these cards (``check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120``)
    crowded = call.head_dim > 192 and (call.head_dim <= 224 or call.dropout > 0)
    small_card = capability in ((8, 6), (8, 9), (12, 0), (12, 1))
    return (
        capability >= (8, 0)
        and call.dtype in HALF_TYPES
        and not call.has_mask
        and call.head_dim == call.value_dim <= 256
        and not (call.causal and call.query_length != call.key_length)
        and not (call.trains and crowded and small_card)
        and _heads_match(call)
    )


def _suits_efficient(call: AttentionCall, capability: tuple[int, int]) -> bool:
    multiple = 8 if call.dtype in HALF_TYPES else (4 if capability >= (8, 0) else 1)
    known = call.dtype in (torch.float16, torch.float32) or (call.dtype is torch.bfloat16 and capability >= (8, 0))
    return (
        capability >= (5, 0)
        and known
        and call.head_dim % multiple == 0
        and call.value_dim % multiple == 0
        and (_heads_match(call) if TORCH_RELEASE >= (2, 14) else call.query_heads == call.key_heads)
    )


def _suits_cudnn(call: AttentionCall, capability: tuple[int, int]) -> bool:
    return (
        capability >= (8, 0)
        and call.dtype in HALF_TYPES
        and call.head_dim % 8 == 0
        and call.value_dim % 8 == 0
        and _suits_cudnn_in_width(call, capability)
        and call.key_length != 1
        and not (call.query_length == 1 and call.dropout)
        and not call.trains_mask
        and (TORCH_RELEASE < (2, 12) or (call.dropout * _CUDNN_DROPOUT_STEP).is_integer())
        and not requires_deterministic()
        and _heads_match(call)
    )


def _suits_cudnn_in_width(call: AttentionCall, capability: tuple[int, int]) -> bool:
    widths = (call.head_dim, call.value_dim)
    if TORCH_RELEASE < (2, 14):
        is_deepseeks = capability[0] == 10 and widths == (192, 128)
        return is_deepseeks or max(widths) <= (256 if capability == (9, 0) else 128)
    is_wide = capability[0] in _PREFERRING_CUDNN and max(widths) <= 256
    return max(widths) <= 128 or (is_wide and (not call.trains or widths in _WIDTHS_IN_TRAINING))


def _heads_match(call: AttentionCall) -> bool:
    is_grouped = call.grouped or (TORCH_RELEASE >= (2, 14) and call.key_heads == 1)
    return call.query_heads == call.key_heads or (is_grouped and call.query_heads % call.key_heads == 0)


_CHECKS: dict[Backend, tuple[Callable[[], bool], Callable[[AttentionCall, tuple[int, int]], bool]]] = {
    Backend.FLASH: (torch.backends.cuda.flash_sdp_enabled, _suits_flash),
    Backend.EFFICIENT: (torch.backends.cuda.mem_efficient_sdp_enabled, _suits_efficient),
    Backend.CUDNN: (torch.backends.cuda.cudnn_sdp_enabled, _suits_cudnn),
}


def attend(  # noqa: PLR0917 - the operator's own signature
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    capability: tuple[int, int],
) -> torch.Tensor:
    """Run the kernel that a card would choose for ``scaled_dot_product_attention``, with the conversions around it.

    From torch 2.14 on three dimensions are those of a single batch.
    """
    tensors = (query, key, value)
    if TORCH_RELEASE >= (2, 14) and all(each.dim() == _WITHOUT_BATCH for each in tensors):
        attended = attend(
            query.unsqueeze(0),
            key.unsqueeze(0),
            value.unsqueeze(0),
            attn_mask,
            dropout_p,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
            capability=capability,
        )
        return attended.squeeze(0)
    backend = expected_backend(
        tensors, capability, mask=attn_mask, dropout=dropout_p, causal=is_causal, grouped=enable_gqa
    )
    mask = _as_float_mask(attn_mask, query.dtype)
    aten = torch.ops.aten
    if backend is Backend.FLASH:
        return flash_attention(tensors, dropout=dropout_p, causal=is_causal, scale=scale)
    if backend is Backend.MATH:
        with _adding_a_mask():
            results = aten._scaled_dot_product_attention_math(
                *tensors, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
            )
    elif backend is Backend.EFFICIENT:
        results = aten._scaled_dot_product_efficient_attention(
            *tensors, _expanded_mask(_aligned(mask), query, key), _trains(*tensors), dropout_p, is_causal, scale=scale
        )
    else:
        results = aten._scaled_dot_product_cudnn_attention(
            *tensors, _expanded_mask(mask, query, key), _trains(*tensors), dropout_p, is_causal, False, scale=scale
        )
    made: torch.Tensor = results[0]
    return made


def expected_backend(
    tensors: _QueryKeyValue,
    capability: tuple[int, int],
    *,
    mask: torch.Tensor | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    grouped: bool = False,
) -> Backend:
    """Return the kernel that a card would choose for query, key and value, fake ones of four dimensions."""
    if not isinstance(tensors[0], FakeTensor | FunctionalTensor) or any(each.dim() != 4 for each in tensors):
        return Backend.MATH
    return choose_backend(_call(tensors, mask, dropout=dropout, causal=causal, grouped=grouped), capability)


def can_take(
    backend: Backend,
    tensors: _QueryKeyValue,
    capability: tuple[int, int],
    *,
    mask: torch.Tensor | None,
    dropout: float,
    causal: bool,
    grouped: bool,
) -> bool:
    """Whether a fused kernel takes query, key and value of four dimensions, also nested ones, on a card."""
    return _is_usable(backend, _call(tensors, mask, dropout=dropout, causal=causal, grouped=grouped), capability)


def adds_mask_in_place() -> bool:
    """Whether the math path runs, whose only sum adds the mask into the scores, except under a dispatch mode."""
    return _adds_a_mask.get()


@contextmanager
def _adding_a_mask() -> Iterator[None]:
    token = _adds_a_mask.set(True)
    try:
        yield
    finally:
        _adds_a_mask.reset(token)


def _call(
    tensors: _QueryKeyValue, mask: torch.Tensor | None, *, dropout: float, causal: bool, grouped: bool
) -> AttentionCall:
    query, key, value = tensors
    return AttentionCall(
        dtype=query.dtype,
        query_heads=query.shape[1],
        key_heads=key.shape[1],
        query_length=query.shape[2],
        key_length=key.shape[2],
        head_dim=query.shape[3],
        value_dim=value.shape[3],
        has_mask=mask is not None,
        trains_mask=mask is not None and _trains(mask),
        dropout=dropout,
        causal=causal,
        trains=_trains(*tensors),
        grouped=grouped,
        is_dense=all(each is None or each.stride(-1) == 1 for each in (*tensors, mask)),
    )


def _trains(*tensors: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and any(each.requires_grad for each in tensors)


def flash_attention(tensors: _QueryKeyValue, *, dropout: float, causal: bool, scale: float | None) -> torch.Tensor:
    """Run flash attention on query, key and value by head, heads padded to what its kernel takes."""
    head_dim = tensors[0].shape[-1]
    scale = head_dim**-0.5 if scale is None else scale  # of the unpadded head
    missing = -head_dim % _FLASH_HEAD_MULTIPLE
    padded = [functional.pad(each, (0, missing)) for each in tensors] if missing else tensors
    attended: torch.Tensor
    attended, *_ = torch.ops.aten._scaled_dot_product_flash_attention(*padded, dropout, causal, False, scale=scale)
    return attended[..., :head_dim]


def _as_float_mask(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """Replace a mask of truth values by numbers to add (``convert_boolean_attn_mask`` in ``attention.cpp``)."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.where(mask, torch.zeros((), dtype=dtype), torch.full((), float("-inf"), dtype=dtype))


def _aligned(mask: torch.Tensor | None) -> torch.Tensor | None:
    """Pad rows of a mask, as efficient attention needs them (``pad_bias`` in ``attention.cpp``)."""
    missing = 0 if mask is None else -mask.shape[-1] % _EFFICIENT_MASK_MULTIPLE
    if mask is None or not missing:
        return mask
    return functional.pad(mask, (0, missing))[..., : mask.shape[-1]]


def _expanded_mask(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
    return None if mask is None else mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
