"""Values taken apart and put together with other tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from memplan.training.tensors_apart import put_together, taken_apart


@dataclass
class Cache:
    keys: list[torch.Tensor] = field(default_factory=list)
    length: int = 0


def test_tensors_are_replaced_wherever_they_are_held() -> None:
    key, logits = torch.zeros(2), torch.zeros(3)
    tensors, rest = taken_apart({"logits": logits, "cache": Cache(keys=[key, key], length=2)})
    assert [each is own for each, own in zip(tensors, (logits, key), strict=True)] == [True, True]
    others = (torch.ones(3), torch.ones(2))
    again = put_together(others, rest)
    assert again["logits"] is others[0]
    assert again["cache"].keys[0] is again["cache"].keys[1] is others[1]
    assert again["cache"].length == 2


def test_what_holds_the_tensors_is_made_anew() -> None:
    value = [torch.zeros(1)]
    tensors, rest = taken_apart(value)
    assert put_together(tensors, rest) is not value
