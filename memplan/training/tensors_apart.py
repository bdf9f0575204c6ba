"""Values taken apart into their tensors and all else, whatever holds them: a cache of keys, a dataclass, a dict."""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any

import cloudpickle
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


def taken_apart(value: Any) -> tuple[tuple[torch.Tensor, ...], bytes]:
    """Return the tensors of a value, each once, and the rest of it.

    Raises:
        Exception: the rest cannot be pickled.
    """
    rest = io.BytesIO()
    packer = _Packer(rest)
    packer.dump(value)
    return tuple(packer.tensors), rest.getvalue()


def put_together(tensors: Sequence[torch.Tensor], rest: bytes) -> Any:
    """Return a value alike that holds other tensors."""
    return _Unpacker(io.BytesIO(rest), tensors).load()


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[torch.Tensor] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, torch.Tensor):
            return None
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self.tensors)
            self.tensors.append(value)
        return self._numbers[id(value)]


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, number: int) -> torch.Tensor:
        return self._tensors[number]
