"""Batches of any shape as a flat tuple of tensors, so that every tensor in them is found, moved and counted.

Frameworks put objects of their own into batches (mmengine's data elements, graphs), which only pickling traverses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memplan.training.tensors_apart import put_together, taken_apart

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBatch:
    """A batch split into tensors and structure.

    Args:
        tensors: every tensor of the batch, each once.
        structure: the batch without its tensors, pickled.
    """

    tensors: tuple[torch.Tensor, ...]
    structure: bytes

    def unpacked(self) -> Any:
        """Rebuild the batch around the tensors."""
        return put_together(self.tensors, self.structure)


def packed(batch: object) -> PackedBatch:
    """Split a batch into its tensors and its structure."""
    tensors, structure = taken_apart(batch)
    return PackedBatch(tensors=tensors, structure=structure)
