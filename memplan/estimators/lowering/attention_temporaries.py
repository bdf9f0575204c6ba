"""Temporaries of CUDA's fused attention kernels."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from memplan.estimators.lowering.contiguous_copies import copies
from memplan.estimators.lowering.efficient_attention import (
    efficient_backward,
    efficient_backward_by_position,
    efficient_forward,
    efficient_forward_by_position,
)
from memplan.estimators.lowering.flash_attention import FlashKernels
from memplan.estimators.lowering.packed_attention import PackedAttention
from memplan.estimators.lowering.temporary_bytes import FP32_BYTES, NO_TEMPORARIES, TemporaryBytes
from memplan.units import round_up

if TYPE_CHECKING:
    from memplan.estimators.lowering.temporary_bytes import Rule

_HOPPER, _BLACKWELL = 9, 10  # major compute capability of cards for data centres
_ENGINE_BYTES = 128  # what cuDNN's engines ask for besides
_SHORT = 128  # positions for which Blackwell has no engine of its own, but at these widths
_DEEPSEEKS_WIDTHS = (192, 128)


def attention_rules(capability: tuple[int, int], multiprocessors: int | None) -> dict[str, Rule]:
    """Return the rules for a card, by operator.

    Args:
        capability: its compute capability.
        multiprocessors: of the card; None where only its memory is known, and nothing is shared among them.
    """
    flash = FlashKernels(multiprocessors)
    return {
        **flash.rules(),
        **PackedAttention(capability, flash).rules(),
        "aten._scaled_dot_product_efficient_attention": efficient_forward,
        "aten._scaled_dot_product_efficient_attention_backward": partial(efficient_backward, capability=capability),
        "aten._efficient_attention_forward": efficient_forward_by_position,
        "aten._efficient_attention_backward": partial(efficient_backward_by_position, capability=capability),
        "aten._scaled_dot_product_cudnn_attention": partial(cudnn_forward, capability=capability),
        "aten._scaled_dot_product_cudnn_attention_backward": partial(cudnn_backward, capability=capability),
    }


def cudnn_forward(_args: tuple[Any, ...], _result: Any, *, capability: tuple[int, int]) -> TemporaryBytes:
    """Return what the engines that cuDNN 9.24 proposes for Hopper take; those for other cards take nothing."""
    return TemporaryBytes(after_results=(2 * _ENGINE_BYTES,)) if capability[0] == _HOPPER else NO_TEMPORARIES


def cudnn_backward(args: tuple[Any, ...], _result: Any, *, capability: tuple[int, int]) -> TemporaryBytes:
    """Fp32 accumulator of the query's gradient, and the row sums; then what the engine takes.

    The first two are cudnn-frontend's part of the workspace (``get_fe_workspace_size_node`` in
    ``scaled_dot_product_flash_attention.h``). Where heads are shared, all engines have gradients of key and value for
    every query head; some that cuDNN 9.20 proposes have an accumulator of their own besides, of eight rows at once.
    ``run_cudnn_SDP_bprop`` in ``cudnn/MHA.cpp`` copies a gradient whose last dimension is not dense.
    """
    gradient, query, key, value = args[:4]
    batch, heads, length, head_dim = query.shape
    is_shared = key.shape[1] != heads
    workspace_bytes = batch * heads * length * (head_dim + 1) * FP32_BYTES
    if _accumulates_twice(capability, lengths=(length, key.shape[2]), widths=(head_dim, value.shape[-1])):
        workspace_bytes += batch * heads * round_up(length, 8) * head_dim * FP32_BYTES + _ENGINE_BYTES
    elif capability[0] == _HOPPER:
        workspace_bytes += 2 * _ENGINE_BYTES
    elif is_shared:
        workspace_bytes += _ENGINE_BYTES
    if is_shared:
        workspace_bytes += batch * heads * key.shape[2] * (head_dim + value.shape[-1]) * key.element_size()
    copied = () if gradient.stride(-1) == 1 else copies((gradient,))
    return TemporaryBytes(after_results=(*copied, workspace_bytes))


def _accumulates_twice(capability: tuple[int, int], *, lengths: tuple[int, int], widths: tuple[int, int]) -> bool:
    """Whether the engine that cuDNN 9.20 proposes has an accumulator beside that of cudnn-frontend.

    Args:
        capability: compute capability of the card.
        lengths: of query and key.
        widths: numbers of a head of key and value.
    """
    if capability[0] != _BLACKWELL:
        return capability[0] != _HOPPER
    queries, keys = lengths
    is_long = keys > _SHORT and (queries == 1 or queries > _SHORT)
    return not is_long and widths != _DEEPSEEKS_WIDTHS
