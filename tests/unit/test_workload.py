"""What a workload refuses as soon as it is written down."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memplan
from memplan.errors import WorkloadError


def workload(**changes: object) -> memplan.Workload:
    functions = {"model": nn.Identity, "batch": torch.zeros, "loss": torch.sum, "optimizer": torch.optim.SGD}
    return memplan.Workload(**(functions | changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"optimizer": "adamw"}, "the workload's optimizer is of type str; give a function"),
        ({"loader": ["batches"]}, "the workload's loader is of type list; give a function"),
        ({"evaluate": True}, "the workload's evaluate is of type bool; give a function"),
        ({"sample_sizes": [1, 2]}, "the workload's sample_sizes is of type list; give a function"),
        ({"model": nn.Linear(2, 2)}, "the workload's model is a Linear, not a function that makes one; write model="),
        ({"deepspeed": "ds.json"}, "the workload's deepspeed is of type str; give the configuration itself"),
        ({"deepspeed": {}, "shard": print}, "the workload has both deepspeed and shard; choose one of them"),
        ({"deepspeed": {}, "ema": True}, "the workload has both deepspeed and ema"),
        ({"evaluation_batch": torch.ones}, "the workload has an evaluation_batch and no evaluate; say what is done"),
        (
            {"zero_grad_before_backward": True, "zero_grad_after_step": True},
            "the workload has both zero_grad_before_backward and zero_grad_after_step; choose one of them",
        ),
    ],
    ids=[
        "a name for a function",
        "loaders for a function",
        "a switch for a function",
        "sizes for a function",
        "a model for its factory",
        "a file for a configuration",
        "two ways to shard",
        "an average of parts",
        "no evaluation",
        "gradients zeroed at two places",
    ],
)
def test_what_would_fail_in_every_child_is_refused_at_once(changes: dict[str, object], said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        workload(**changes)


def test_a_class_is_a_factory() -> None:
    assert workload().model is nn.Identity
