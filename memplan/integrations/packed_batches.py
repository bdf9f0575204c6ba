"""Batches of any shape as a flat tuple of tensors, so that every tensor in them is found, moved and counted.

Frameworks put objects of their own into batches (mmengine's data elements, graphs). Pickling traverses all of them: a
batch is pickled with its tensors left out, and rebuilt around other tensors.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import Any

import cloudpickle
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
        return _Unpacker(io.BytesIO(self.structure), self.tensors).load()


def packed(batch: object) -> PackedBatch:
    """Split a batch into its tensors and its structure."""
    stream = io.BytesIO()
    packer = _Packer(stream)
    packer.dump(batch)
    return PackedBatch(tensors=tuple(packer.tensors), structure=stream.getvalue())


class _Packer(cloudpickle.Pickler):
    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self.tensors: list[torch.Tensor] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: object) -> int | None:
        if not isinstance(obj, torch.Tensor):
            return None
        if id(obj) not in self._numbers:
            self._numbers[id(obj)] = len(self.tensors)
            self.tensors.append(obj)
        return self._numbers[id(obj)]


class _Unpacker(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, tensors: tuple[torch.Tensor, ...]) -> None:
        super().__init__(stream)
        self._tensors = tensors

    def persistent_load(self, pid: int) -> torch.Tensor:
        return self._tensors[pid]
