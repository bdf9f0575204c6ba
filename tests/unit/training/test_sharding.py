"""One of several replicas that are not there: its share of a model, and collectives that need no others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffload, FSDPModule, FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.optim import SGD

from memplan.errors import WorkloadError
from memplan.recipe import Recipe
from memplan.training import sharding
from memplan.training.sharding import (
    begin_pass,
    clip_gradients,
    gathers_inside,
    is_sharded,
    join_absent_replicas,
    shard_model,
)
from memplan.workload import Workload

pytestmark = [
    pytest.mark.usefixtures("no_replica_is_left"),
    pytest.mark.filterwarnings("ignore:.*NO_SHARD:FutureWarning", "ignore:FSDP is switching to use:UserWarning"),
]
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


def test_of_a_sum_a_replica_gets_its_own_part_where_the_stand_in_writes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "_SUMS_ARE_WRITTEN", False)
    monkeypatch.setattr(dist, "reduce_scatter_tensor", lambda *_, group: group)
    join_absent_replicas(4, "cpu")
    share = torch.full((2,), torch.nan)
    assert dist.reduce_scatter_tensor(share, torch.arange(8.0), group="all") == "all"
    assert share.tolist() == [0, 1]


def test_meshes_lie_on_the_one_kind_of_device_whatever_they_are_asked_for() -> None:
    join_absent_replicas(4, "cpu")
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))
    assert (mesh.device_type, tuple(mesh.shape)) == ("cpu", (2, 2))


def test_functions_inside_of_which_weights_are_gathered_are_told_from_those_that_find_them_whole() -> None:
    join_absent_replicas(2, "cpu")
    layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    assert not gathers_inside(layers, layers.forward)
    fully_shard(layers[1])
    assert gathers_inside(layers, layers.forward)
    assert gathers_inside(layers[1], layers[1].__call__)  # its hooks gather
    assert not gathers_inside(layers[1], layers[1].forward)
    layer = nn.Linear(8, 8)
    wrapped = FullyShardedDataParallel(layer)
    assert gathers_inside(wrapped, wrapped.forward)
    assert not gathers_inside(wrapped, layer.forward)


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


def wrapped(**settings: Any) -> FullyShardedDataParallel:
    """Two layers of 8 x 8, wrapped as one by the first FSDP, the second of two replicas being absent."""
    join_absent_replicas(2, "cpu")
    layers = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(2)))
    made = shard_model(layers, lambda model, _: FullyShardedDataParallel(model, **settings), RECIPE)
    assert isinstance(made, FullyShardedDataParallel)
    return made


def test_a_wrapper_of_the_first_fsdp_takes_the_place_of_the_model() -> None:
    model = wrapped(device_id=0, sync_module_states=True)  # as on a card
    (share,) = model.parameters()
    assert tuple(share.shape) == (64,)
    model(torch.ones(1, 8)).sum().backward()
    assert tuple(share.grad.shape) == (64,)


@pytest.mark.parametrize(("strategy", "sharded"), [("FULL_SHARD", True), ("SHARD_GRAD_OP", True), ("NO_SHARD", False)])
def test_whether_a_wrapper_shards_is_a_question_of_its_strategy(strategy: str, sharded: bool) -> None:
    assert is_sharded(wrapped(sharding_strategy=ShardingStrategy[strategy])) is sharded


def test_gradients_of_a_wrapper_are_exchanged_in_the_last_pass_where_they_are_deferred() -> None:
    model = wrapped()
    workload = Workload(model=wrapped, batch=torch.ones, loss=nn.MSELoss(), optimizer=SGD, defers_gradient_sync=True)
    sizes = []
    for is_last in (False, True):
        begin_pass(model, workload, is_last=is_last)
        model(torch.ones(1, 8)).sum().backward()
        sizes += [each.grad.numel() for each in model.parameters()]
    assert sizes == [128, 64]


def test_gradients_of_a_wrapper_are_clipped_by_the_norm_over_all_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    exchanged = []
    monkeypatch.setattr(dist, "all_reduce", lambda norm, **_: exchanged.append(float(norm)))
    model = wrapped()
    model(torch.ones(1, 8)).sum().backward()
    (share,) = model.parameters()
    share.grad.fill_(1.0)
    clip_gradients(model, 1.0)
    assert exchanged == [64.0]  # the square of the norm of 64 ones
    assert torch.allclose(share.grad, torch.full((64,), 1 / 8))


def test_wrappers_that_offload_their_shards_are_refused() -> None:
    with pytest.raises(WorkloadError, match=r"returned wrappers with CPUOffload\(offload_params=True\); leave their"):
        wrapped(cpu_offload=CPUOffload(offload_params=True))
