"""A LightningModule is trained by DeepSpeed's engine as under its Trainer's strategy."""

from __future__ import annotations

import importlib.util
import json
import pickle
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from memplan.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

lightning = pytest.importorskip("lightning.pytorch", reason="needs memplan[lightning]")
pytest.importorskip("deepspeed", reason="needs memplan[deepspeed]")

from lightning.pytorch.strategies import DeepSpeedStrategy  # noqa: E402 - after it is known to be there

from memplan.integrations import lightning as integration  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # of DeepSpeed's code


class Layers(lightning.LightningModule):
    """Two layers of 8 x 8; steps and validation tell what the forward pass of the module was while they ran."""

    def __init__(self) -> None:
        super().__init__()
        self.lr, self.batch_size = 0.1, 2
        self.module = nn.Identity()  # a name that wrappers have, too
        self.net = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(2)))
        self.ran: list[str] = []

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.net(batch)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.ran.append("training_step")
        return self(batch).sum()

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.ran.append("validation_step")
        return self(batch).sum()

    def train_dataloader(self) -> Any:
        return DataLoader([torch.ones(8)] * 4, 2)

    val_dataloader = train_dataloader

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), self.lr)


class BuildsLate(Layers):
    def __init__(self) -> None:
        super().__init__()
        del self.net

    def configure_model(self) -> None:
        self.net = nn.Sequential(nn.Linear(8, 8))


@pytest.fixture
def planned_with(planned_by: Any) -> Any:
    """Return a function that plans with these arguments of the Trainer, and returns the workload as it arrives."""

    def plan(module: Layers, strategy: Any, **settings: Any) -> Any:
        workload = planned_by(integration, lambda: integration.tune({"strategy": strategy, **settings}, module))
        return pickle.loads(cloudpickle.dumps(workload))

    return plan


def test_a_named_strategy_and_one_that_was_made_are_deepspeeds_configuration(planned_with: Any) -> None:
    named = planned_with(Layers(), "deepspeed_stage_2_offload", gradient_clip_val=0.5)
    assert named.deepspeed["zero_optimization"]["stage"] == 2
    assert named.deepspeed["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    assert named.grad_clip_norm == 0.5
    made = planned_with(Layers(), DeepSpeedStrategy(stage=1, reduce_bucket_size=64))
    assert made.deepspeed["zero_optimization"]["stage"] == 1
    assert made.deepspeed["zero_optimization"]["reduce_bucket_size"] == 64


def test_a_configuration_in_a_file_is_read(tmp_path: Path, planned_with: Any) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    assert planned_with(Layers(), DeepSpeedStrategy(config=str(path))).deepspeed == {"zero_optimization": {"stage": 3}}


@pytest.mark.parametrize(("module", "as_made"), [(Layers(), False), (BuildsLate(), True)], ids=["whole", "late"])
def test_layers_that_are_made_in_configure_model_arrive_sharded(
    module: Layers, as_made: bool, planned_with: Any
) -> None:
    workload = planned_with(module, "deepspeed_stage_3")
    assert workload.weights_arrive_sharded is as_made
    assert next(workload.model().net.parameters()).shape == (8, 8)


class Engine(nn.Module):
    """Stands for DeepSpeed's, which would change PyTorch for all tests after it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.passes = 0

    def forward(self, *given: Any) -> Any:
        self.passes += 1
        return self.module(*given)


def test_steps_and_validation_run_within_the_engine(planned_with: Any) -> None:
    workload = planned_with(Layers(), "deepspeed_stage_3")
    module = workload.model()
    engine = Engine(module)
    workload.loss(engine, workload.batch(2)).backward()
    workload.evaluate(engine, workload.evaluation_batch(2))
    assert module.ran == ["training_step", "validation_step"]
    assert engine.passes == 2


def test_an_optimizer_in_the_configuration_is_refused() -> None:
    strategy = DeepSpeedStrategy(config={"optimizer": {"type": "Adam"}})
    with pytest.raises(UsageError, match="has an optimizer, in the place of the module's"):
        integration.tune({"strategy": strategy}, Layers())


def test_deepspeed_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="strategy='deepspeed' needs deepspeed, which is not installed"):
        integration.tune({"strategy": "deepspeed"}, Layers())
