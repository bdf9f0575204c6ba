"""Batches as trees of tensors."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch

from memplan.training.batches import map_tensors, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable


class Pair(NamedTuple):
    image: torch.Tensor
    label: str


@dataclass
class Sample:
    image: torch.Tensor
    name: str = "one"


class Graph:
    """Maps itself, as the graphs of torch_geometric do."""

    def __init__(self, nodes: torch.Tensor) -> None:
        self.nodes = nodes

    def apply(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Graph:
        self.nodes = change(self.nodes)
        return self

    def to(self, device: str) -> Graph:
        return self.apply(lambda tensor: tensor.to(device))


IMAGE = torch.zeros(2)


@pytest.mark.parametrize(
    "batch",
    [
        IMAGE,
        [IMAGE, 3],
        (IMAGE, None),
        {"image": IMAGE, "path": "a.png"},
        UserDict(image=IMAGE),
        Pair(image=IMAGE, label="cat"),
        Sample(image=IMAGE),
        Graph(nodes=IMAGE),
        {"views": [Pair(image=IMAGE, label="left")]},
    ],
    ids=["tensor", "list", "tuple", "dict", "mapping", "named tuple", "dataclass", "graph", "nested"],
)
def test_every_tensor_is_found_and_replaced_and_containers_keep_their_type(batch: object) -> None:
    assert tensors_in(batch) == [IMAGE]
    changed = map_tensors(lambda tensor: tensor + 1, batch)
    assert tensors_in(batch) == [IMAGE]  # and nothing of it has changed
    assert type(changed) is type(batch)
    assert [each.tolist() for each in tensors_in(changed)] == [[1.0, 1.0]]


def test_an_object_that_moves_itself_is_copied_with_the_tensors_of_its_attributes_replaced() -> None:
    """As DETR's nested tensors and SpeechBrain's padded batches, which have ``to`` and no way to map them."""

    class Padded:
        def __init__(self, images: torch.Tensor, lengths: Pair) -> None:
            self.images, self.lengths, self.ids = images, lengths, ["a"]

        def to(self, device: str) -> Padded:
            return Padded(self.images.to(device), self.lengths)

    batch = [Padded(torch.ones(2), Pair(torch.ones(3), "lengths")), Padded, "text"]
    assert [tensor.numel() for tensor in tensors_in(batch)] == [2, 3]
    changed = map_tensors(torch.zeros_like, batch)
    assert (changed[0].images.sum(), changed[0].lengths.image.sum()) == (0, 0)
    assert (changed[0].ids, changed[1:]) == (["a"], [Padded, "text"])
    assert batch[0].images.sum() == 2
