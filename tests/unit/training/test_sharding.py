"""One of several replicas that are not there: its share of a model, and collectives that need no others."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from memplan.errors import WorkloadError
from memplan.recipe import Recipe
from memplan.training.sharding import join_absent_replicas, shard_model

pytestmark = pytest.mark.usefixtures("no_replica_is_left")
RECIPE = Recipe(micro_batch_size=1)


def shard(model: nn.Module, _: Recipe) -> nn.Module:
    return fully_shard(model)


def test_a_replica_trains_its_share_without_the_others() -> None:
    join_absent_replicas(4, "cpu")
    model = nn.Linear(8, 8, bias=False)
    shard_model(model, shard, RECIPE)
    (share,) = model.parameters()
    assert tuple(share.to_local().shape) == (2, 8)
    model(torch.ones(1, 8)).sum().backward()
    assert tuple(share.grad.to_local().shape) == (2, 8)


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
    shard_model(model, shard, RECIPE)
    shard_model(model, lambda *_: None, RECIPE)
    assert isinstance(model, FSDPModule)
    with pytest.raises(WorkloadError, match="returned a Sequential in place of the model; shard the model in place"):
        shard_model(model, lambda model, _: nn.Sequential(model), RECIPE)
