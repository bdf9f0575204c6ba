"""The dense tensors behind a tensor: itself, a sparse one's indices and values, or what a wrapper subclass holds."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import _disable_current_modes

_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),  # the public accessors need a coalesced tensor
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
_MADE_OF_PARTS = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default  # noqa: SLF001 - an operator


def wraps_others(kind: type) -> bool:
    """Whether this type is a wrapper subclass, whose tensors have no storage of their own."""
    return hasattr(kind, "__tensor_flatten__")


def is_on_meta(tensor: torch.Tensor) -> bool:
    """Whether the tensor is on the meta device, which has no memory; ``is_meta`` is never so for fake tensors."""
    return tensor.device.type == "meta"


def dense_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensor itself, the indices and values of a sparse one, or the parts of a wrapper subclass."""
    if wraps_others(type(tensor)):
        names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]  # the protocol of such subclasses
        values = (getattr(tensor, name) for name in names)
        return [part for each in values if isinstance(each, torch.Tensor) for part in dense_parts(each)]
    if tensor.layout is torch.strided:
        return [tensor]
    with _disable_current_modes():
        return [getattr(tensor, name)() for name in _PARTS.get(tensor.layout, ())]


def sparse_of(indices: torch.Tensor, values: torch.Tensor, *, shape: list[int], is_coalesced: bool) -> torch.Tensor:
    """Return the sparse COO tensor of these indices and values."""
    made: torch.Tensor = _MADE_OF_PARTS(
        indices.shape[0], values.dim() - 1, shape, indices, values,
        dtype=values.dtype, layout=torch.sparse_coo, device=values.device, is_coalesced=is_coalesced,
    )  # fmt: skip
    return made
