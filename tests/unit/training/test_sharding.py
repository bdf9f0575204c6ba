"""One of several replicas that are not there: its share of a model, and collectives that need no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from memplan.errors import WorkloadError
from memplan.training.sharding import join_absent_replicas, shard_model

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _no_process_group_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(DeviceMesh, "__init__", DeviceMesh.__init__)  # which joining replaces
    yield
    dist.destroy_process_group()


def test_a_replica_trains_its_share_without_the_others() -> None:
    join_absent_replicas(4, "cpu")
    model = nn.Linear(8, 8, bias=False)
    shard_model(model, fully_shard)
    (shard,) = model.parameters()
    assert tuple(shard.to_local().shape) == (2, 8)
    model(torch.ones(1, 8)).sum().backward()
    assert tuple(shard.grad.to_local().shape) == (2, 8)


def test_meshes_lie_on_the_one_kind_of_device_whatever_they_are_asked_for() -> None:
    join_absent_replicas(4, "cpu")
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))
    assert (mesh.device_type, tuple(mesh.shape)) == ("cpu", (2, 2))


def test_who_joined_others_before_joins_the_new_ones() -> None:
    join_absent_replicas(4, "cpu")
    join_absent_replicas(2, "cpu")
    assert (dist.get_rank(), dist.get_world_size()) == (0, 2)


def test_a_shard_function_may_return_the_model_or_nothing_but_no_other() -> None:
    join_absent_replicas(2, "cpu")
    model = nn.Linear(8, 8)
    shard_model(model, fully_shard)
    shard_model(model, lambda _: None)
    assert isinstance(model, FSDPModule)
    with pytest.raises(WorkloadError, match="returned a Sequential in place of the model; shard the model in place"):
        shard_model(model, nn.Sequential)
