"""The path that layers of transformers take in evaluation, without gradients and autocast: one operator each.

Sources: ``transformer.cpp``, ``attention.cpp`` and ``cuda/attention.cu`` in ``aten/src/ATen/native/transformers``,
``NestedTensorTransformerFunctions.cpp`` in ``aten/src/ATen/native/nested``, and ``masked_softmax_cuda`` in
``aten/src/ATen/native/cuda/SoftMax.cu``, of torch 2.13, and the allocations of 2.11 and 2.12 themselves.
"""

# ruff: noqa: SLF001 - the kernels of the fast path are private operators of torch

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import overrides
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional
from torch.overrides import _get_current_function_mode_stack

from memplan.estimators.absent_card.cuda_emulation import CudaEmulation
from memplan.estimators.fake_tensors.dispatcher import KernelOverrides
from memplan.estimators.fake_tensors.known_values import known_lengths
from memplan.estimators.lowering.attention import Backend, expected_backend
from memplan.estimators.lowering.torch_release import TORCH_RELEASE
from memplan.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_KEY = "AutogradCPU"
_SAMPLES = "memplan_samples"  # on what a nested tensor holds: how many, and the length of the longest
_PADDED_LENGTH = 8  # of which a multiple is taken where products attend within a nested tensor
_FUSED_HEAD_MULTIPLE = 1 if TORCH_RELEASE >= (2, 12) else 8  # of a head that a fused kernel gets
_PACKED_TYPES = (torch.float32, torch.float16)  # for which a card has a kernel that packs samples
_LONGEST_MASKED_ROW, _WIDEST_MASKED_ROW_BYTES = 1024, 4096  # that one kernel masks and normalises


def take_fast_path(capability: tuple[int, int] | None) -> None:
    """Let layers of transformers take the fast path with fake tensors, for the rest of this process.

    Args:
        capability: compute capability of the card; None for the CPU.
    """
    overrides.has_torch_function = partial(_has_torch_function, overrides.has_torch_function)  # where layers look it up
    kernels = KernelOverrides(_KEY)
    replacements: dict[str, Callable[..., Any]] = {
        "_native_multi_head_attention": partial(native_attention, capability=capability),
        "_transformer_encoder_layer_fwd": partial(encoder_layer, capability=capability),
        "_nested_tensor_from_mask_left_aligned": _is_left_aligned,
        "_nested_tensor_from_mask": partial(_pack, by_kernel=_PACKED_TYPES if capability is not None else ()),
        "to_padded_tensor": _pad,
    }
    for name, function in replacements.items():
        kernels.wrap(name, partial(_for_fakes, function))


def _has_torch_function(own: Callable[[Any], bool], arguments: Any) -> bool:
    """Whether anything but the emulation of a card may replace a call with these arguments, one of them fake."""
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]  # untyped in torch
    is_emulated = all(isinstance(each, CudaEmulation) for each in modes)
    if not is_emulated or not any(isinstance(each, FakeTensor) for each in arguments):
        return own(arguments)
    plain = (torch.Tensor.__torch_function__, torch._C._disabled_torch_function_impl)
    return any(getattr(type(each), "__torch_function__", plain[0]) not in plain for each in arguments)


def _for_fakes(function: Callable[..., Any], own: Callable[..., Any], values: torch.Tensor, *args: Any) -> Any:
    return function(values, *args) if isinstance(values, FakeTensor) else own(values, *args)


def _is_left_aligned(_values: torch.Tensor, mask: torch.Tensor) -> bool:
    return known_lengths(mask) is not None


def _pack(values: torch.Tensor, mask: torch.Tensor, *_: Any, by_kernel: Collection[torch.dtype]) -> torch.Tensor:
    """Return what a nested tensor holds, the positions of all samples one after another, as one sample.

    Other types are selected by a mask of all elements, which is stacked of one of each sample; a card takes the places
    of what it selects, the CPU a running count.
    """
    lengths = cast("list[int]", known_lengths(mask))
    shape = (1, sum(lengths), values.shape[-1])
    selecting = []
    if values.dtype not in by_kernel:
        selecting.append(values.new_empty((2, *values.shape), dtype=torch.bool))
        selecting.append(values.new_empty((3, *shape) if by_kernel else values.shape, dtype=torch.int64))
    packed = values.new_empty(shape)
    selecting.clear()
    setattr(packed, _SAMPLES, (len(lengths), max(lengths)))
    return packed


def _pad(packed: torch.Tensor, _padding: float, size: list[int]) -> torch.Tensor:
    """Return samples of one length, given what a nested tensor holds."""
    return packed.new_empty(size)


def encoder_layer(  # noqa: PLR0917 - the operator's own signature
    values: torch.Tensor,
    width: int,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    first_norm_weight: torch.Tensor,
    first_norm_bias: torch.Tensor,
    second_norm_weight: torch.Tensor,
    second_norm_bias: torch.Tensor,
    up_weight: torch.Tensor,
    up_bias: torch.Tensor,
    down_weight: torch.Tensor,
    down_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
    *,
    capability: tuple[int, int] | None,
) -> torch.Tensor:
    """Run a layer of ``TransformerEncoder``, each sum in place."""

    def normalised(each: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(each, [width], weight, bias, eps)

    made = normalised(values, first_norm_weight, first_norm_bias) if norm_first else values
    projections = (qkv_weight, qkv_bias, out_weight, out_bias)
    made, _ = native_attention(
        made, made, made, width, heads, *projections, mask, False, True, mask_type, capability=capability
    )
    made.add_(values)
    if not norm_first:
        made = normalised(made, first_norm_weight, first_norm_bias)
    attended = made
    if norm_first:
        made = normalised(made, second_norm_weight, second_norm_bias)
    made = _feed_forward(made, up_weight, up_bias, down_weight, down_bias, use_gelu=use_gelu).add_(attended)
    if not norm_first:
        made = normalised(made, second_norm_weight, second_norm_bias)
    if hasattr(values, _SAMPLES):
        setattr(made, _SAMPLES, getattr(values, _SAMPLES))
    return made


def _feed_forward(
    values: torch.Tensor,
    up_weight: torch.Tensor,
    up_bias: torch.Tensor,
    down_weight: torch.Tensor,
    down_bias: torch.Tensor,
    *,
    use_gelu: bool,
) -> torch.Tensor:
    rows = torch._addmm_activation(up_bias, values.flatten(0, 1), up_weight.t(), use_gelu=use_gelu)
    return torch.addmm(down_bias, rows, down_weight.t()).view(values.shape)


def native_attention(  # noqa: PLR0917 - the operator's own signature
    query: torch.Tensor,
    _key: torch.Tensor,
    _value: torch.Tensor,
    width: int,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_weights: bool = True,
    _mask_type: int | None = None,
    *,
    capability: tuple[int, int] | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attend within each sample by a fused kernel, or by products where there is a mask or weights are asked for."""
    in_heads = (*query.shape[:2], heads, width // heads)
    may_fuse = mask is None and not need_weights and in_heads[-1] % _FUSED_HEAD_MULTIPLE == 0
    if may_fuse and capability is not None:
        asked = query.view(in_heads).transpose(1, 2)
        if expected_backend((asked, asked, asked), capability) is not Backend.MATH:
            parts = functional.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
            queries, keys, values = (each.view(in_heads).transpose(1, 2) for each in parts)
            attended = functional.scaled_dot_product_attention(queries, keys, values)
            return functional.linear(attended.transpose(1, 2).reshape(query.shape), out_weight, out_bias), None
    is_nested = hasattr(query, _SAMPLES)
    samples, length = getattr(query, _SAMPLES, query.shape[:2])
    if is_nested:
        length = _PADDED_LENGTH * ceil_div(length, _PADDED_LENGTH)
    projected = torch.matmul(query, qkv_weight.t())
    rows = projected.new_empty(3, samples * heads, length, in_heads[-1])
    del projected
    queries, keys, values = rows
    scores = torch.bmm(queries, keys.transpose(1, 2))
    if mask is not None or is_nested:
        scores = _masked_softmax(scores, mask)
    attended = torch.bmm(scores, values, out=queries).view(samples, heads, length, in_heads[-1]).transpose(1, 2)
    if not need_weights:
        del scores
    in_order = query.new_empty(query.shape) if is_nested else attended.reshape(samples, length, width)
    made = functional.linear(in_order, out_weight, out_bias)
    if not need_weights:
        return made, None
    del in_order
    scores = scores.view(samples, heads, length, length)
    return made, scores.sum(1).div_(heads) if average_weights else scores


def _masked_softmax(scores: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Normalise scores beside themselves; rows too long for one kernel are filled and normalised beside both."""
    mask = None if mask is None else mask.to(torch.bool)
    is_dense = mask is None or mask.is_contiguous()
    normalised = torch.empty_like(scores)
    row_bytes = scores.shape[-1] * scores.itemsize
    if is_dense and scores.shape[-1] <= _LONGEST_MASKED_ROW and row_bytes <= _WIDEST_MASKED_ROW_BYTES:
        return normalised
    return torch.softmax(torch.empty_like(scores), -1)
