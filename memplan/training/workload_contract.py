"""The contract of a workload: what its functions return."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from memplan.errors import WorkloadError
from memplan.training.batches import tensors_in
from memplan.training.optimizer_states import optimizer_states, optimizers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from memplan.workload import Workload

_LARGEST_GROUP = 8  # a batch function may leave out samples that fill no group, as pairs of views


class TooFewSamplesError(WorkloadError):
    """The workload's batch function has fewer samples than it is asked for.

    Args:
        problem: what is wrong.
        available: samples that it has; None where they were not counted.
        context: place, hint and detail, as for every error.
    """

    def __init__(self, problem: str, *, available: int | None = None, **context: str | None) -> None:
        super().__init__(problem, **context)
        self.available = available

    def __reduce__(self) -> tuple[object, ...]:
        rebuild = functools.partial(
            type(self), available=self.available, where=self.where, hint=self.hint, detail=self.detail
        )
        return rebuild, (self.problem,)


def name_of(function: Callable[..., Any]) -> str:
    """Return the function's name with its module."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"


def checked_model(model: Any, function: Callable[..., Any]) -> nn.Module:
    """Return the model.

    Raises:
        WorkloadError: it is no ``torch.nn.Module``.
    """
    if isinstance(model, nn.Module):
        return model
    raise WorkloadError(
        f"the workload's model factory {name_of(function)} returned a {type(model).__name__}",
        hint="return a torch.nn.Module",
    )


def checked_optimizer(optimizer: Any, function: Callable[..., Any]) -> Optimizer:
    """Return the optimizer.

    Raises:
        WorkloadError: it is something else, such as a list of optimizers.
    """
    if isinstance(optimizer, Optimizer):
        return optimizer
    raise WorkloadError(
        f"the workload's optimizer {name_of(function)} returned a {type(optimizer).__name__}",
        hint="return one torch.optim.Optimizer; with several, run the training by --command or command=",
    )


def check_step(optimizer: Optimizer, model: nn.Module, function: Callable[..., Any]) -> None:
    """Check that an optimizer's step had something to do; one of copies, such as master weights, has their gradients.

    Raises:
        WorkloadError: no parameter of it, or of optimizers that work for it, is the model's or has a gradient, and
            none of them keeps state.
    """
    is_left_to_it = any(each.grad is not None for each in model.parameters())  # hooks of the backward pass free them
    if not is_left_to_it or _has_stepped([optimizer], model):
        return
    optimizers = optimizers_of(optimizer, model.parameters())
    if _has_stepped(optimizers, model) or any(optimizer_states(optimizers)):
        return
    raise WorkloadError(
        f"the workload's optimizer {name_of(function)} has none of the model's parameters",
        hint="make it of the parameters that the function is given",
    )


def _has_stepped(optimizers: Iterable[Optimizer], model: nn.Module) -> bool:
    own = {id(each) for each in model.parameters()}
    stepped = (each for one in optimizers for group in getattr(one, "param_groups", ()) for each in group["params"])
    return any(id(each) in own or each.grad is not None for each in stepped)


def checked_loss(loss: Any, function: Callable[..., Any]) -> torch.Tensor:
    """Return the loss.

    Raises:
        WorkloadError: it is not a tensor of one element that requires grad.
    """
    if not isinstance(loss, torch.Tensor):
        found = f"returned a {type(loss).__name__}"
    elif loss.numel() != 1:
        found = f"returned a tensor of shape {tuple(loss.shape)}"
    elif not loss.requires_grad:
        raise WorkloadError(
            f"the workload's loss {name_of(function)} returned a tensor that does not require grad",
            hint="return one number that depends on the parameters, some of which must require grad",
        )
    else:
        return loss
    raise WorkloadError(
        f"the workload's loss {name_of(function)} {found}", hint="return one number that depends on the parameters"
    )


def check_batches(workload: Workload, batches: Mapping[int, Any]) -> None:
    """Check that batches of two sizes hold tensors of different shapes.

    Raises:
        TooFewSamplesError: the data has fewer samples than either.
        WorkloadError: they hold no tensors, or the batch function ignores the size.
    """
    shapes = [[tuple(each.shape) for each in tensors_in(batch)] for batch in batches.values()]
    if not shapes[0]:
        raise WorkloadError(
            f"the workload's batch function {name_of(workload.batch)} returned no tensor",
            hint="return tensors (torch.from_numpy makes them of arrays), in dicts, lists, tuples or dataclasses where "
            "there are several",
        )
    if shapes[0] == shapes[1]:
        counted = next((each for each in shapes[0] if each), ())
        if counted and _LARGEST_GROUP <= counted[0] <= min(batches):
            raise _too_few_samples(workload, max(batches), counted)
        tried = " and ".join(str(size) for size in batches)
        raise WorkloadError(
            f"the workload's batch function {name_of(workload.batch)} ignores its argument: "
            f"for {tried} samples it returned tensors of the same shapes {shapes[0]}",
            hint="return as many samples as it is asked for",
        )


def check_batch_is_full(workload: Workload, batches: Mapping[int, Any]) -> None:
    """Check that the larger of two batches has all of its samples, where the smaller shows which dimension counts them.

    Raises:
        TooFewSamplesError: the data has fewer samples than the function is asked for.
    """
    smaller, size = sorted(batches)
    shapes = (([tuple(each.shape) for each in tensors_in(batches[count])]) for count in (smaller, size))
    for few, many in zip(*shapes, strict=False):
        if few[:1] == (smaller,) and smaller < many[0] <= size - _LARGEST_GROUP:
            raise _too_few_samples(workload, size, many)


def _too_few_samples(workload: Workload, size: int, shape: tuple[int, ...]) -> TooFewSamplesError:
    return TooFewSamplesError(
        f"the workload's batch function {name_of(workload.batch)} has too few samples: "
        f"for {size} it returned a tensor of shape {shape}",
        hint=f"allow no more with --max-batch {shape[0]}, or let it repeat samples, as memplan.worst_batch does",
        available=shape[0],
    )
