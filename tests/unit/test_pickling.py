"""What users define in a script or notebook reaches a child process."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch.nn.attention import SDPBackend

from memplan.children.pickling import pickled


@pytest.mark.parametrize(
    "value",
    [torch.backends.cudnn, torch.ops.aten, torch.ops.aten.mm, torch.ops.aten.mm.default, SDPBackend],
    ids=["module of another class", "namespace", "operator", "overload", "class under another name"],
)
def test_what_is_found_by_name_arrives_as_itself(value: object) -> None:
    assert pickle.loads(pickled(lambda: value))() is value


def test_a_member_of_an_enumeration_of_pytorch_arrives() -> None:
    assert pickle.loads(pickled([SDPBackend.MATH])) == [SDPBackend.MATH]
