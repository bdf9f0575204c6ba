"""Addresses of the storages of fake tensors, which have none.

The first FSDP tells by them which tensors share a storage, and which storages are freed
(``torch/distributed/fsdp/_flat_param.py`` and ``_runtime_utils.py``).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memplan.estimators.fake_tensors.replaced import replaced

if TYPE_CHECKING:
    from collections.abc import Iterator

_LARGEST_STORAGE_BITS = 64


@contextmanager
def addressed_storages() -> Iterator[None]:
    """Give storages that are not empty an address of their own while the context is open."""
    with (
        replaced(torch.UntypedStorage, "data_ptr", _address),
        replaced(FakeTensor, "data_ptr", _address_of_first_element),
    ):
        yield


def _address(storage: torch.UntypedStorage) -> int:
    return id(storage) << _LARGEST_STORAGE_BITS if storage.nbytes() else 0  # it lives as long as the storage itself


def _address_of_first_element(tensor: torch.Tensor) -> int:
    begin = _address(tensor.untyped_storage())
    return begin + int(tensor.storage_offset()) * tensor.itemsize if begin else 0
