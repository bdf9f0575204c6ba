"""Wrappers around a model: refused where they need several processes, told where they change what a card holds."""

from __future__ import annotations

import pytest
from torch import nn

from memplan.errors import WorkloadError
from memplan.estimators.recorder.wrapped_models import name_without_wrappers, refuse_wrappers, wrapper_notes


def wrapped_in(name: str) -> nn.Module:
    """Put a layer into a wrapper of a class of this name."""
    wrapper: type[nn.Module] = type(name, (nn.Module,), {"forward": nn.Identity.forward})
    module = wrapper()
    module.inner = nn.Linear(2, 2)
    return module


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("DistributedDataParallel", "DistributedDataParallel; return the model inside it"),
        ("FullyShardedDataParallel", "sharded model; return the model as it is before FSDP, and shard it in"),
        ("FSDPModule", "sharded model"),
    ],
)
def test_a_wrapper_that_needs_several_processes_is_refused_wherever_it_is(name: str, complaint: str) -> None:
    with pytest.raises(WorkloadError, match=complaint):
        refuse_wrappers(nn.Sequential(wrapped_in(name)))


def test_a_model_spread_over_cards_by_one_process_is_told_to_start_one_for_each() -> None:
    model = nn.DataParallel(nn.Linear(2, 2))
    refuse_wrappers(model)
    (note,) = wrapper_notes(model)
    assert note.endswith("; start one process a card instead, with torchrun")


def test_a_module_keeps_the_name_that_it_had_before_it_was_wrapped() -> None:
    assert name_without_wrappers("_fsdp_wrapped_module.blocks.0._fsdp_wrapped_module.up") == "blocks.0.up"
    assert name_without_wrappers("_fsdp_wrapped_module") == ""
    assert name_without_wrappers("blocks.0") == "blocks.0"
