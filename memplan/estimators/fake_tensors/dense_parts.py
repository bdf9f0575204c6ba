"""What a tensor is stored in: one dense part, or the indices and values of a sparse one."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import _disable_current_modes

_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),  # the public ones want the tensor coalesced
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def dense_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return what a tensor is stored in: itself, or the indices and values of a sparse one."""
    if tensor.layout is torch.strided:
        return [tensor]
    with _disable_current_modes():
        return [getattr(tensor, name)() for name in _PARTS.get(tensor.layout, ())]
