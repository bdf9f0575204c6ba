"""What a tensor is stored in."""

from __future__ import annotations

import torch
from torch.testing._internal.two_tensor import TwoTensor

from memplan.training.dense_parts import dense_parts


def test_a_dense_tensor_is_stored_in_itself() -> None:
    tensor = torch.zeros(2, 3)
    assert dense_parts(tensor) == [tensor]


def test_a_sparse_tensor_is_stored_in_indices_and_values() -> None:
    assert [part.shape for part in dense_parts(torch.eye(3).to_sparse())] == [(2, 3), (3,)]


def test_a_subclass_is_stored_in_what_it_wraps_however_deep() -> None:
    first, second, third = (torch.zeros(2) for _ in range(3))
    assert [id(part) for part in dense_parts(TwoTensor(TwoTensor(first, second), TwoTensor(third, third)))] == [
        *map(id, (first, second, third, third))
    ]
