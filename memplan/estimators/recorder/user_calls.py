"""Calling the user's functions so that what goes wrong in them is told in one line, with their traceback at hand."""

from __future__ import annotations

import re
import traceback
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.optim import Optimizer

from memplan.errors import MemplanError, WorkloadError
from memplan.user_places import place_of_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

_FAKE_MODULES = ("torch._subclasses", "torch.fx", "torch._dynamo", "torch._higher_order_ops")
# What kernels and Python bindings say where they are handed tensors without values; masks of bytes are refused by the
# rule for fake tensors alone (``meta_index_Tensor`` of torch 2.13).
_FAKE_WORDS = re.compile(
    r"fake|meta\b|data pointer|data is not allocated|tensor subclass|data.dependent|symbolic|storage|byte or bool",
    re.IGNORECASE,
)
_NEVER_OF_SIZES = (NameError, AttributeError, ImportError, KeyError, TypeError, OSError)
_HINTS = (
    (r"process group|NCCL|FSDP", "return the model as it is before it is wrapped: replicas are counted all the same"),
    (r"\bclosure\b", "choose an optimizer whose step needs no closure"),
    (r"CUDA|NVIDIA|\bGPU\b", "no GPU can be seen while the step is traced: ask it nothing in model, batch and loss"),
)


def call_user(role: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call one of the workload's functions.

    Raises:
        WorkloadError: it raised; the message names its role, itself and the line, ``detail`` holds the traceback.
    """
    try:
        return function(*arguments)
    except MemplanError:
        raise
    except (Exception, SystemExit) as error:
        told, said = "".join(traceback.format_exception(error)), str(error).rstrip(".")
        raise WorkloadError(
            f"the workload's {role} {name_of(function)} raised {type(error).__name__}: {said}",
            where=place_of_error(error),
            hint=_hint_for(error),
            detail=told,
        ) from error


def copied(model: nn.Module, copy: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Copy the user's model.

    Raises:
        WorkloadError: a part of it refuses that; the message names the line, ``detail`` holds the traceback.
    """
    try:
        return copy(model)
    except MemplanError:
        raise
    except Exception as error:
        raise WorkloadError(
            f"the workload's model {type(model).__name__} cannot be copied, which each traced run needs: "
            f"{type(error).__name__}: {error}",
            where=place_of_error(error),
            hint="let copy.deepcopy(model) work, e.g. by a __deepcopy__ of the module that refuses",
            detail="".join(traceback.format_exception(error)),
        ) from error


def _hint_for(error: BaseException) -> str | None:
    return next((hint for words, hint in _HINTS if re.search(words, str(error))), None)


def name_of(function: Callable[..., Any]) -> str:
    """Return the function's name with its module, for messages."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"


def checked_optimizer(optimizer: Any, function: Callable[..., Any]) -> Optimizer:
    """Return the optimizer if it is one.

    Raises:
        WorkloadError: it is something else, such as a list of optimizers.
    """
    if isinstance(optimizer, Optimizer):
        return optimizer
    raise WorkloadError(
        f"the workload's optimizer {name_of(function)} returned a {type(optimizer).__name__}",
        hint="return one torch.optim.Optimizer; --command runs a training with several as it is",
    )


def checked_loss(loss: Any, function: Callable[..., Any]) -> torch.Tensor:
    """Return the loss if ``backward`` can be called on it.

    Raises:
        WorkloadError: it is not a tensor of one element that requires grad.
    """
    if not isinstance(loss, torch.Tensor):
        found = f"returned a {type(loss).__name__}"
    elif loss.numel() != 1:
        found = f"returned a tensor of shape {tuple(loss.shape)}"
    elif not loss.requires_grad:
        found = "returned a tensor that does not require grad"
    else:
        return loss
    raise WorkloadError(
        f"the workload's loss {name_of(function)} {found}", hint="return one number that depends on the parameters"
    )


def is_fake_tensor_failure(error: WorkloadError) -> bool:
    """Whether a failure comes of tensors that hold no values, so that computing the step may go well."""
    cause = error.__cause__
    if cause is None:
        return False
    is_fakes_own = type(cause).__module__.startswith(_FAKE_MODULES) or isinstance(cause, NotImplementedError)
    return is_fakes_own or _is_their_assertion(cause) or bool(_FAKE_WORDS.search(str(cause)))


def _is_their_assertion(cause: BaseException) -> bool:
    innermost = [frame for frame, _ in traceback.walk_tb(cause.__traceback__)][-1]
    return isinstance(cause, AssertionError) and innermost.f_globals["__name__"].startswith(_FAKE_MODULES)


def fake_tensor_reason(error: WorkloadError) -> str:
    """Say what fake tensors could not do."""
    if isinstance(error.__cause__, DataDependentOutputException):
        return "the value of a tensor is read there"
    if isinstance(error.__cause__, DynamicOutputShapeException):
        return "a shape depends on the values of a tensor there"
    return error.problem


def may_depend_on_size(error: WorkloadError) -> bool:
    """Whether a failure may come of the number of samples; a broken contract or a wrong name never does."""
    return error.__cause__ is not None and not isinstance(error.__cause__, _NEVER_OF_SIZES)
