"""Calls of the user's functions, whose exceptions become a one-line ``WorkloadError`` with the traceback as detail."""

from __future__ import annotations

import re
import traceback
from typing import TYPE_CHECKING, Any

from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from memplan.errors import MemplanError, WorkloadError
from memplan.training.workload_contract import name_of
from memplan.user_places import error_of_user

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

_FAKE_MODULES = ("torch._subclasses", "torch.fx", "torch._dynamo", "torch._higher_order_ops")
# Messages of kernels and Python bindings on tensors without values; only the rule for fake tensors refuses byte masks
# (``meta_index_Tensor`` of torch 2.13), and only fake tensors cannot be nested. A computed number is no integer.
_FAKE_TENSOR_MESSAGE = re.compile(
    r"fake|meta\b|data pointer|data is not allocated|tensor subclass|data.dependent|symbolic|storage|byte or bool"
    r"|NestedTensorImpl|ComputedNumber",
    re.IGNORECASE,
)
_INDEPENDENT_OF_SIZE = (NameError, AttributeError, ImportError, KeyError, TypeError, OSError)
_HINTS = (
    (
        r"process group twice|^'(WORLD_SIZE|(LOCAL_)?RANK)'$",
        "the shard function runs in a process group of the replicas already: ask torch.distributed for rank and size",
    ),
    (
        r"out of meta tensor; no data!$",
        "make a criterion that has weights part of the model; the loss may set no data of tensors outside of it",
    ),
    (r"from meta device|on device meta", "make the model on the CPU, outside of torch.device('meta')"),
    (
        r"process group|Unsupported group type|NCCL|FSDP needs",
        "wrap no model, since replicas are counted all the same, and gather only if torch.distributed.is_initialized()",
    ),
    (
        r"\bclosure\b",
        "choose an optimizer whose step needs no closure, or have your own script run: memplan probe --command",
    ),
    (
        r"CUDA|NVIDIA|\bGPU\b",
        (
            "no GPU is visible while the step is traced: leave .cuda() and the like out, since memplan places model "
            "and batch; torch.accelerator.current_accelerator() or 'cpu' is what there is"
        ),
    ),
)


class EvaluationError(WorkloadError):
    """The workload's evaluation raised; the training steps before it ran."""


def call_user(role: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call one of the workload's functions.

    Raises:
        WorkloadError: it raised; the message names its role, the function and the line, ``detail`` holds the traceback.
    """
    try:
        return function(*arguments)
    except MemplanError:
        raise
    except (Exception, SystemExit) as error:
        raise error_of_user(f"the workload's {_named(role, function)} raised", error, hint=_hint_for(error)) from error


def call_evaluation(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call what the workload evaluates with.

    Raises:
        EvaluationError: it raised.
    """
    try:
        return call_user("evaluation", function, *arguments)
    except WorkloadError as error:
        failed = EvaluationError(error.problem, where=error.where, hint=error.hint, detail=error.detail)
        raise failed from error.__cause__


def _named(role: str, function: Callable[..., Any]) -> str:
    """Name a function with its role; one of memplan's own, which runs a framework's step, has a role only."""
    name = name_of(function)
    return role if name.startswith("memplan.") else f"{role} {name}"


def copied_model(model: nn.Module, copy: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Copy the user's model.

    Raises:
        WorkloadError: a part of it cannot be copied; the message names the line, ``detail`` holds the traceback.
    """
    try:
        return copy(model)
    except MemplanError:
        raise
    except Exception as error:
        what = f"the workload's model {type(model).__name__} cannot be copied, which each traced run needs"
        hint = "let copy.deepcopy(model) work, e.g. by a __deepcopy__ of the module that refuses"
        raise error_of_user(what, error, hint=hint) from error


def _hint_for(error: BaseException) -> str | None:
    return next((hint for words, hint in _HINTS if re.search(words, str(error))), None)


def is_fake_tensor_failure(error: WorkloadError) -> bool:
    """Whether a failure is due to fake tensors, so that the step may run on real ones."""
    cause = error.__cause__
    if cause is None:
        return False
    is_of_fake_tensors = type(cause).__module__.startswith(_FAKE_MODULES) or isinstance(cause, NotImplementedError)
    return is_of_fake_tensors or _is_fake_tensor_assertion(cause) or bool(_FAKE_TENSOR_MESSAGE.search(str(cause)))


def _is_fake_tensor_assertion(cause: BaseException) -> bool:
    innermost = [frame for frame, _ in traceback.walk_tb(cause.__traceback__)][-1]
    return isinstance(cause, AssertionError) and innermost.f_globals["__name__"].startswith(_FAKE_MODULES)


def fake_tensor_reason(error: WorkloadError) -> str:
    """Say why the step cannot run on fake tensors."""
    if isinstance(error.__cause__, DataDependentOutputException):
        return "the value of a tensor is read there"
    if isinstance(error.__cause__, DynamicOutputShapeException):
        return "a shape depends on the values of a tensor there"
    return error.problem


def may_depend_on_size(error: WorkloadError) -> bool:
    """Whether a failure may depend on the micro-batch size; a broken contract or a wrong name does not."""
    if isinstance(error, EvaluationError):  # the steps before it ran at that size
        return False
    return error.__cause__ is not None and not isinstance(error.__cause__, _INDEPENDENT_OF_SIZE)
