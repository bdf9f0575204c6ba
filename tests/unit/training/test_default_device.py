"""A device that code chose by default is forgotten."""

from __future__ import annotations

import torch

from memplan.training.default_device import forget_default_device


def test_nothing_is_left_of_a_device_that_was_chosen() -> None:
    torch.set_default_device("meta")
    assert torch.ones(1).is_meta
    for _ in range(2):
        forget_default_device()
        assert torch.ones(1).device == torch.get_default_device() == torch.device("cpu")
        assert not hasattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context")
