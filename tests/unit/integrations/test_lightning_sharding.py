"""A LightningModule is sharded as its Trainer's strategy would."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import wrap
from torch.utils.data import DataLoader

from memplan.errors import UsageError, WorkloadError

lightning = pytest.importorskip("lightning.pytorch", reason="needs memplan[lightning]")

from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy  # noqa: E402 - after it is known to be there

from memplan.integrations import lightning as integration  # noqa: E402
from memplan.recipe import Recipe  # noqa: E402
from memplan.training.sharding import join_absent_replicas, shard_model  # noqa: E402
from tests import making  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("no_replica_is_left"),
    pytest.mark.filterwarnings("ignore:.*retain a full-precision copy", "ignore:.*FSDPPrecision"),
]
ONE = Recipe(micro_batch_size=1, world_size=2)


class Layers(lightning.LightningModule):
    """Two layers of 8 x 8; steps tell how they ran."""

    def __init__(self) -> None:
        super().__init__()
        self.lr = 0.1
        self.net = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(2)))
        self.ran: list[Any] = []

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        output = self.net(batch)
        self.ran += [output.dtype, torch.is_autocast_enabled("cpu")]
        return output.sum()

    def train_dataloader(self) -> Any:
        return DataLoader([torch.ones(8)] * 4, 1)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.trainer.model.parameters(), self.lr)


class ShardsItself(Layers):
    def configure_model(self) -> None:
        fully_shard(self.net, mesh=self.device_mesh["data_parallel"])


class BuildsLate(Layers):
    def __init__(self) -> None:
        super().__init__()
        del self.net


class WrapsLayers(Layers):
    def configure_model(self) -> None:
        self.net = wrap(self.net)


def planned_with(module: Layers, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Any:
    """Plan with these arguments of the Trainer, and return the workload as it arrives in a child process."""
    found: list[Any] = []
    plan = making.plan(ONE, ONE)
    monkeypatch.setattr(integration, "planned", lambda workload, *_, **__: found.append(workload) or plan)
    integration.tune(settings, module, train_dataloaders=module.train_dataloader())
    return pickle.loads(cloudpickle.dumps(found[0]))


def sharded(workload: Any, recipe: Recipe = ONE) -> nn.Module:
    model = workload.model()
    join_absent_replicas(2, "cpu")
    return shard_model(model, workload.shard, recipe)


def test_the_fsdp_strategy_wraps_the_module_and_its_steps_run_through_the_wrapper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workload = planned_with(Layers(), monkeypatch, strategy=FSDPStrategy(auto_wrap_policy={nn.Linear}))
    model = sharded(workload)
    assert len(FullyShardedDataParallel.fsdp_modules(model)) == 3  # both layers and the module
    optimizer = workload.optimizer(model.parameters())
    workload.loss(model, workload.batch(1)).backward()
    gradients = [each.grad.numel() for group in optimizer.param_groups for each in group["params"]]
    assert gradients == [32, 32]  # halves of 8 x 8
    assert workload.defers_gradient_sync


def test_the_strategy_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = sharded(planned_with(Layers(), monkeypatch, strategy="fsdp"))
    assert len(FullyShardedDataParallel.fsdp_modules(model)) == 1


def test_under_mixed_precision_parameters_are_gathered_in_half_and_steps_autocast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workload = planned_with(Layers(), monkeypatch, strategy="fsdp")
    model = sharded(workload, Recipe(micro_batch_size=1, world_size=2, precision="bf16"))
    workload.loss(model, workload.batch(1))
    assert model.mixed_precision.param_dtype is torch.bfloat16
    assert model.module.ran == [torch.bfloat16, True]


def test_under_model_parallelism_the_module_shards_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    workload = planned_with(ShardsItself(), monkeypatch, strategy=strategy)
    model = sharded(workload)
    assert isinstance(model.net, FSDPModule)
    workload.loss(model, workload.batch(1)).backward()
    assert [tuple(each.grad.to_local().shape) for each in model.parameters()] == [(4, 8), (4, 8)]
    assert not workload.defers_gradient_sync


def test_sizes_that_are_not_those_of_the_replicas_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = planned_with(ShardsItself(), monkeypatch, strategy=ModelParallelStrategy(data_parallel_size=3))
    with pytest.raises(WorkloadError, match="data_parallel_size=3 times tensor_parallel_size=2 are not 2 replicas"):
        sharded(workload)


@pytest.mark.parametrize(
    ("module", "strategy", "complaint"),
    [
        (WrapsLayers(), FSDPStrategy(), "configure_model wraps layers such as Sequential one by one"),
        (BuildsLate(), ModelParallelStrategy(), "BuildsLate has no parameters before configure_model"),
    ],
    ids=["wraps layers", "builds late"],
)
def test_what_configure_model_alone_makes_is_refused(
    module: Layers, strategy: Any, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = planned_with(module, monkeypatch, strategy=strategy)
    join_absent_replicas(2, "cpu")
    with pytest.raises(WorkloadError, match=complaint):
        workload.model()


@pytest.mark.parametrize(
    "strategy",
    [
        "fsdp_cpu_offload",
        FSDPStrategy(cpu_offload=True),
    ],
    ids=["named", "made"],
)
def test_offloading_by_fsdp_is_refused(strategy: Any) -> None:
    join_absent_replicas(2, "cpu")
    with pytest.raises(UsageError, match="FSDPStrategy has cpu_offload"):
        integration.tune({"strategy": strategy}, Layers(), batch_arg_name="lr")
