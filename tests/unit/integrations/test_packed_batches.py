"""Batches are taken apart into tensors, whatever objects hold them, and put together again."""

from __future__ import annotations

import torch

from memplan.integrations.packed_batches import packed
from memplan.training.batches import map_tensors, tensors_in


class Graph:
    """A batch object as frameworks have them: no container that anyone else looks into."""

    def __init__(self, nodes: torch.Tensor, label: str) -> None:
        self.nodes = nodes
        self.label = label


def test_tensors_inside_objects_are_found_and_come_back() -> None:
    batch = packed({"graphs": [Graph(torch.ones(3), "a"), Graph(torch.zeros(2), "b")], "epoch": 7})
    assert [tuple(each.shape) for each in tensors_in(batch)] == [(3,), (2,)]
    again = batch.unpacked()
    assert [each.label for each in again["graphs"]] == ["a", "b"]
    assert again["epoch"] == 7


def test_a_batch_is_rebuilt_around_other_tensors() -> None:
    doubled = map_tensors(lambda tensor: tensor * 2, packed((torch.ones(2), [torch.ones(1)]))).unpacked()
    assert torch.equal(doubled[0], torch.full((2,), 2.0))
    assert torch.equal(doubled[1][0], torch.full((1,), 2.0))


def test_a_tensor_that_stands_twice_is_moved_once() -> None:
    shared = torch.ones(4)
    batch = packed([shared, shared])
    assert len(batch.tensors) == 1
    first, second = batch.unpacked()
    assert first is second
