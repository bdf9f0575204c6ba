"""The user's model and batches as the trace needs them: built by the workload's functions, and checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from memplan.errors import WorkloadError
from memplan.estimators.recorder.batches import tensors_in
from memplan.estimators.recorder.checkpointing import enable_checkpointing
from memplan.estimators.recorder.fake_model import is_parameter_subclass
from memplan.estimators.recorder.user_calls import call_user, name_of
from memplan.estimators.recorder.wrapped_models import refuse_wrappers

if TYPE_CHECKING:
    from memplan.recipe import Recipe
    from memplan.workload import Workload


def built_model(workload: Workload, recipe: Recipe) -> nn.Module:
    """Call the model factory and prepare the model as a training does before the first step.

    Raises:
        WorkloadError: the factory raises, or returns no module, or one that needs several processes.
    """
    model = call_user("model factory", workload.model)
    if not isinstance(model, nn.Module):
        raise WorkloadError(
            f"the workload's model factory {name_of(workload.model)} returned a {type(model).__name__}",
            hint="return a torch.nn.Module",
        )
    refuse_wrappers(model)
    if any(is_parameter_subclass(each) for each in model.parameters()):
        model.to("cpu")  # bitsandbytes quantizes when a model is moved
    if recipe.activation_checkpointing:
        enable_checkpointing(model)
    return model


def materialise_lazy_modules(model: nn.Module, workload: Workload, batches: dict[int, Any]) -> None:
    """Run lazy modules once, on the smallest batch, which sets the shapes of their parameters."""
    if any(map(is_lazy, (*model.parameters(), *model.buffers()))):
        with torch.no_grad():
            call_user("loss", workload.loss, model, batches[min(batches)])


def made_batches(workload: Workload, sizes: tuple[int, ...]) -> dict[int, Any]:
    """Return the batch of each micro-batch size."""
    return {size: call_user("batch function", workload.batch, size) for size in sizes}


def check_batches(workload: Workload, batches: dict[int, Any]) -> None:
    """Check that batches of two sizes hold tensors of different shapes.

    Raises:
        WorkloadError: they hold no tensors, or the batch function ignores the size.
    """
    shapes = [[tuple(each.shape) for each in tensors_in(batch)] for batch in batches.values()]
    if not shapes[0]:
        raise WorkloadError(
            f"the workload's batch function {name_of(workload.batch)} returned no tensor",
            hint="return tensors, in dicts, lists, tuples or dataclasses where there are several",
        )
    if shapes[0] == shapes[1]:
        tried = " and ".join(str(size) for size in batches)
        raise WorkloadError(
            f"the workload's batch function {name_of(workload.batch)} ignores its argument: "
            f"for {tried} samples it returned tensors of the same shapes {shapes[0]}",
            hint="return as many samples as it is asked for",
        )
