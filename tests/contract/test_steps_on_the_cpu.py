"""The peak of whole training steps as it is estimated for the CPU, held against the step run for real."""

from __future__ import annotations

import copy
import gc
import sys
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest
import torch
from torch import nn

from memplan.devices.resolving import resolve_device
from memplan.estimators import estimate
from memplan.probe.cpu_readings import attribute_step
from memplan.probe.known_blocks import visible_storages
from memplan.probe.training_loop import build_training, run_optimizer_step
from memplan.recipe import Recipe
from memplan.units import KIB
from memplan.workload import Workload
from tests.contract.tracing import traced
from tests.host_allocations import AS_MEASURED

if TYPE_CHECKING:
    from collections.abc import Callable

cloudpickle.register_pickle_by_value(sys.modules[__name__])

CPU = resolve_device("cpu")


def images(count: int) -> torch.Tensor:
    return torch.randn(count, 3, 32, 32)


def plain_adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def mean_square_of_a_form(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    form = copy.deepcopy(model).to("meta")
    return torch.func.functional_call(form, dict(model.named_parameters()), batch).square().mean()


def mean_of_a_branch(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    result = model(batch)
    taken = torch.cond(batch.square().sum() > 0, lambda x: x.sin().cos().exp(), lambda x: 2 * x, (result,))
    return taken.square().mean()


def mean_square_of_lines(model: nn.Module, lines: list[torch.Tensor]) -> torch.Tensor:
    return model(torch.nested.nested_tensor(lines, layout=torch.jagged)).values().square().mean()


def critic() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 3, 2, 1), nn.Flatten(), nn.Linear(2048, 1)
    )


def gradient_penalty(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    score = model(batch.requires_grad_())
    (slope,) = torch.autograd.grad(score.sum(), batch, create_graph=True)
    return score.mean() + (slope.flatten(1).norm(2, 1) - 1).square().mean()


class Experts(nn.Module):
    """Runs its layers on copies of weights that stand in a module which is not registered."""

    def __init__(self) -> None:
        super().__init__()
        self.__dict__["form"] = nn.Linear(256, 256)
        self.weights = nn.Parameter(torch.randn(4, 256, 256))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda weight: torch.func.functional_call(self.form, {"weight": weight}, batch))(self.weights)


class DroppingLayers(nn.Module):
    """Drops layers by lone random numbers, and reads what it has computed."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256, bias=False) for _ in range(8))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if torch.rand([]) >= 0.4:
                batch = layer(batch).relu()
        return batch if batch.sum() > 0 else -batch


def bags_of_words() -> nn.Module:
    return nn.EmbeddingBag(4096, 64, mode="sum", sparse=True)


def vectors(count: int) -> torch.Tensor:
    return torch.randn(count, 256)


def sequences(count: int) -> torch.Tensor:
    return torch.randn(count, 1024, 256)


def distinct_words(count: int) -> torch.Tensor:
    return torch.arange(count * 16).view(count, 16)


def mean_square(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def few_channels() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 12, 1), nn.Conv2d(12, 24, 3, padding=1), nn.Sigmoid())


STEPS: dict[str, Callable[[], Workload]] = {
    "a penalty on the gradient of the batch": lambda: Workload(
        model=critic, batch=images, loss=gradient_penalty, optimizer=plain_adam
    ),
    "weights of a module that is not registered": lambda: Workload(
        model=Experts, batch=vectors, loss=mean_square, optimizer=plain_adam
    ),
    "sparse gradients of bags": lambda: Workload(
        model=bags_of_words,
        batch=distinct_words,
        loss=mean_square,
        optimizer=lambda parameters: torch.optim.SparseAdam(list(parameters)),
    ),
    "weights that a copy on the meta device is called with": lambda: Workload(
        model=lambda: nn.Linear(256, 256), batch=vectors, loss=mean_square_of_a_form, optimizer=plain_adam
    ),
    "samples of unlike lengths in a nested tensor": lambda: Workload(
        model=lambda: nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 256)),
        batch=lambda count: [torch.randn(512 + 128 * (index % 3), 256) for index in range(count)],
        loss=mean_square_of_lines,
        optimizer=plain_adam,
    ),
    "a branch of torch.cond": lambda: Workload(
        model=lambda: nn.Linear(256, 256), batch=sequences, loss=mean_of_a_branch, optimizer=plain_adam
    ),
    "convolutions of few channels": lambda: Workload(
        model=few_channels, batch=images, loss=mean_square, optimizer=plain_adam
    ),
}


def measured_peak_bytes(workload: Workload, recipe: Recipe) -> int:
    """Return the largest sum of tensor bytes in the third step of a real training."""
    gc.collect()
    before = sum(visible_storages("cpu").values())
    training = build_training(workload, recipe, torch.device("cpu"), seed=0)
    for _ in range(2):
        run_optimizer_step(training)
    return attribute_step(training).allocated_bytes - before


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo asks for it, which captures torch.cond
@pytest.mark.parametrize(
    "make",
    # with AVX2 the gradient of a strided convolution's image, of three channels, takes a copy of the image more
    [pytest.param(make, id=name, marks=AS_MEASURED if "penalty" in name else ()) for name, make in STEPS.items()],
)
def test_the_estimated_peak_is_that_of_the_real_step(make: Callable[[], Workload]) -> None:
    workload, recipe = make(), Recipe(micro_batch_size=8)
    trace = traced(workload, CPU, recipe)
    predicted = estimate(trace, micro_batch_size=8, device=CPU).peak_allocated_bytes
    assert predicted == pytest.approx(measured_peak_bytes(workload, recipe), rel=0.001)


def test_a_computed_step_that_drops_layers_keeps_the_state_of_all_of_them() -> None:
    workload = Workload(
        model=DroppingLayers,
        batch=vectors,
        loss=mean_square,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    )
    trace = traced(workload, CPU, Recipe(micro_batch_size=8))
    assert estimate(trace, micro_batch_size=8, device=CPU).breakdown.optimizer_state == 8 * 256 * KIB
    assert "computed on the CPU" in trace.notes[-1]
