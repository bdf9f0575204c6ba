"""What users define in a script or notebook reaches a child process."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch.nn.attention import SDPBackend

from memplan.children.pickling import pickled
from memplan.units import MIB


@pytest.mark.parametrize(
    "value",
    [torch.backends.cudnn, torch.ops.aten, torch.ops.aten.mm, torch.ops.aten.mm.default, SDPBackend],
    ids=["module of another class", "namespace", "operator", "overload", "class under another name"],
)
def test_what_is_found_by_name_arrives_as_itself(value: object) -> None:
    assert pickle.loads(pickled(lambda: value))() is value


def test_a_member_of_an_enumeration_of_pytorch_arrives() -> None:
    assert pickle.loads(pickled([SDPBackend.MATH])) == [SDPBackend.MATH]


def test_a_storage_that_many_tensors_view_is_sent_once() -> None:
    whole = torch.arange(1 << 18, dtype=torch.float32)  # 1 MiB
    samples = [whole[start : start + 1024] for start in range(0, 1 << 18, 1024)]
    payload = pickled({"whole": whole, "samples": samples})
    assert MIB < len(payload) < 2 * MIB
    arrived = pickle.loads(payload)
    assert torch.equal(arrived["samples"][3], samples[3])
    arrived["whole"][3 * 1024] = -1.0
    assert arrived["samples"][3][0] == -1.0
