"""The user's model and batches, built by the workload's functions as a trace needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from memplan.estimators.recorder.fake_model import is_parameter_subclass
from memplan.estimators.recorder.user_calls import call_user
from memplan.estimators.recorder.wrapped_models import refuse_wrappers
from memplan.training.checkpointing import enable_checkpointing
from memplan.training.random_generators import seed_generators
from memplan.training.workload_contract import checked_model

if TYPE_CHECKING:
    from memplan.recipe import Recipe
    from memplan.workload import Workload


def built_model(workload: Workload, recipe: Recipe, batches: dict[int, Any]) -> nn.Module:
    """Call the model factory and prepare the model as a training does before the first step.

    Args:
        workload: makes the model.
        recipe: whether activations are checkpointed.
        batches: by micro-batch size; lazy modules are run on the smallest, which sets the shapes of their parameters.

    Raises:
        WorkloadError: the factory raises, or returns no module, or one that needs several processes.
    """
    seed_generators()
    model = checked_model(call_user("model factory", workload.model), workload.model)
    refuse_wrappers(model)
    _leave_meta_device(model)
    if any(is_parameter_subclass(each) for each in model.parameters()):
        model.to("cpu")  # bitsandbytes quantizes when a model is moved
    if recipe.activation_checkpointing:
        enable_checkpointing(model)
    if any(map(is_lazy, (*model.parameters(), *model.buffers()))):
        with torch.no_grad():
            call_user("loss", workload.loss, model, batches[min(batches)])
    return model


def _leave_meta_device(model: nn.Module) -> None:
    """Give parameters and buffers of the meta device storages that nobody fills; tied ones stay tied.

    A training does so after it has sharded the model (``Module.to_empty``), of which fake parameters are incapable.
    """
    placed: dict[int, torch.Tensor] = {}
    for module in model.modules():
        own = {**module._parameters, **module._buffers}  # noqa: SLF001 - those of the module alone, each by its name
        for name, each in own.items():
            if each is not None and each.is_meta and type(each) in {nn.Parameter, torch.Tensor}:
                setattr(module, name, placed.setdefault(id(each), _off_meta(each)))


def _off_meta(tensor: torch.Tensor) -> torch.Tensor:
    empty = torch.empty_like(tensor, device="cpu")
    if not isinstance(tensor, nn.Parameter):
        return empty
    parameter = nn.Parameter(empty, requires_grad=tensor.requires_grad)
    vars(parameter).update(vars(tensor))
    return parameter


def made_batches(workload: Workload, sizes: tuple[int, ...]) -> dict[int, Any]:
    """Return the batch of each micro-batch size."""
    return {size: made_batch(workload, size) for size in sizes}


def made_batch(workload: Workload, size: int) -> Any:
    """Return the batch of a micro-batch size; values that it draws may decide sizes, and are those of a trial."""
    seed_generators()
    return call_user("batch function", workload.batch, size)
