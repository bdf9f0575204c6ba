"""Whether kernels are to repeat their results, as PyTorch's settings say (``torch.use_deterministic_algorithms``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Collection

_REFUSING = 2  # ``torch.get_deterministic_debug_mode``: what does not repeat its results raises an error


def prefers_deterministic() -> bool:
    """Whether operators that have another algorithm use it, be it only to warn of those that have none."""
    return torch.are_deterministic_algorithms_enabled()


def requires_deterministic() -> bool:
    """Whether what does not repeat its results is refused; attention repeats its own only then (``sdp_utils.cpp``)."""
    return torch.get_deterministic_debug_mode() == _REFUSING


# Kernels for cards that PyTorch 2.13 and 2.14 refuse where results must repeat (``alertNotDeterministic``). Not among
# them are those that it refuses for some arguments only, such as products in ``scatter_reduce``.
_REFUSED = frozenset({
    "aten._adaptive_avg_pool2d_backward", "aten._adaptive_avg_pool3d_backward", "aten.adaptive_max_pool2d_backward",
    "aten.avg_pool3d_backward", "aten.max_pool3d_with_indices_backward", "aten.fractional_max_pool2d_backward",
    "aten.fractional_max_pool3d_backward", "aten.max_unpool2d", "aten.upsample_linear1d_backward",
    "aten.upsample_bicubic2d_backward", "aten._upsample_bilinear2d_aa_backward", "aten.reflection_pad1d_backward",
    "aten.reflection_pad3d_backward", "aten.nll_loss2d_forward", "aten.grid_sampler_2d_backward",
    "aten.grid_sampler_3d_backward", "aten.put",
})  # fmt: skip


def notes_on_refused(operators: Collection[str]) -> tuple[str, ...]:
    """Name the operators of a step that a card refuses under the present settings, by names without overload."""
    refused = sorted(_REFUSED.intersection(operators)) if requires_deterministic() else []
    if not refused:
        return ()
    named = ", ".join(each.removeprefix("aten.") for each in refused)
    return (f"the card refuses {named}, which cannot repeat results, unless it is only warned of (warn_only=True)",)
