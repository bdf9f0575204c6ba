"""Shape rules of operators whose rule in torch is stricter than their kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.estimators.fake_tensors.dispatcher import KernelOverrides

if TYPE_CHECKING:
    import torch


def install_shape_rules() -> None:
    """Register the rules for fake tensors, for the rest of this process."""
    KernelOverrides("Meta").replace("_grouped_mm", _grouped_product)


def _grouped_product(
    first: torch.Tensor,
    second: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,  # noqa: ARG001 - the operator's own signature
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return the grouped product; torch 2.13's own rule accepts bfloat16 only, its kernels other types too."""
    rows, columns = first.shape[-2], second.shape[-1]
    if first.dim() == 3 and second.dim() == 3:
        shape: tuple[int, ...] = (first.shape[0], rows, columns)
    elif first.dim() == 2 and second.dim() == 2 and offs is not None:
        shape = (offs.numel(), rows, columns)
    else:
        shape = (rows, columns)
    return first.new_empty(shape, dtype=out_dtype or first.dtype)
