"""Results that lie otherwise than PyTorch's rules for fake tensors (torch 2.13) have them.

- Contiguous on a card, where the CPU keeps channels-last: images whose channels become pixels and back
  (``math_pixel_shuffle`` in ``aten/src/ATen/native/PixelShuffle.cpp``), that are padded by reflection
  (``cuda/ReflectionPad.cu``, whose gradients are contiguous, too) or replication (``cuda/ReplicationPadding.cu``), or
  unpooled (``cuda/MaxUnpooling.cu``), and what passes ``rrelu`` (``cuda/RreluWithNoise.cu``).
- Contiguous on any device: gradients of losses between images (``zeros_like`` in ``aten/src/ATen/native/Loss.cpp``),
  and on a card that of ``glu`` (``glu_backward_cuda`` in ``cuda/GatedLinearUnit.cpp``).
- Gradients of activations lie as ``TensorIterator`` has them, by the gradient of the result first
  (``aten/src/ATen/native/Activation.cpp``); rules compare the activation first.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._prims_common import compute_elementwise_output_strides

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._ops import OpOverload


def _contiguous(operator: OpOverload, *args: Any) -> torch.Tensor:
    result: torch.Tensor = operator(*args)
    return torch.empty_like(result, memory_format=torch.contiguous_format)


def _like_first(place: int, gradient: torch.Tensor, *args: Any) -> torch.Tensor | None:
    """Return the gradient of an activation, given its result's and, at a place, what was activated."""
    activated = args[place - 1]
    if gradient.shape != activated.shape:
        return None
    strides = compute_elementwise_output_strides(gradient, activated)
    dtype = torch.result_type(gradient, activated)
    return torch.empty_strided(gradient.shape, strides, dtype=dtype, device=activated.device)


def _all_contiguous(*names: str) -> dict[OpOverload, Callable[..., Any]]:
    operators = [getattr(torch.ops.aten, name).default for name in names]
    return {each: partial(_contiguous, each) for each in operators}


LAYOUTS_ON_ANY_DEVICE = _all_contiguous("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward")
LAYOUTS_ON_CARDS: dict[OpOverload, Callable[..., Any]] = {
    **_all_contiguous(
        "pixel_shuffle",
        "pixel_unshuffle",
        "reflection_pad2d",
        "reflection_pad2d_backward",
        "replication_pad2d",
        "max_unpool2d",
        "rrelu_with_noise",
        "glu_backward",
    ),
    torch.ops.aten.elu_backward.default: partial(_like_first, 5),
    **{
        getattr(torch.ops.aten, f"{name}_backward").default: partial(_like_first, 1)
        for name in ("hardtanh", "hardswish", "hardsigmoid", "softplus", "logit")
    },
}
