"""Turning a real model and real batches into fake ones, laid out as the recipe wants them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

from memplan.estimators.batches import map_tensors
from memplan.recipe import Precision

if TYPE_CHECKING:
    from collections.abc import Callable

_HALF = {Precision.BF16_TRUE: torch.bfloat16, Precision.FP16_TRUE: torch.float16}


def fake_copy(model: nn.Module, fakes: FakeTensorMode, *, precision: Precision, channels_last: bool) -> nn.Module:
    """Copy a model to fake tensors of the recipe's weight type and memory format; tied tensors stay tied."""
    with FakeCopyMode(fakes):
        copied = copy.deepcopy(model)
    _convert_in_place(copied, lambda tensor: laid_out(tensor, precision=precision, channels_last=channels_last))
    return copied


def fake_batch(batch: Any, fakes: FakeTensorMode) -> Any:
    """Make fake tensors of a real batch, as it lies on the host."""
    return map_tensors(fakes.from_tensor, batch)


def moved_batch(batch: Any, *, precision: Precision, channels_last: bool, copy_all: bool) -> Any:
    """Bring a batch into the recipe's type and format, as a move to the device would.

    Args:
        batch: tensors on the host.
        precision: whose weight type floating-point inputs take.
        channels_last: whether 4-D tensors change their memory format.
        copy_all: whether tensors that need no change are copied too, as to another device.
    """

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        changed = laid_out(tensor, precision=precision, channels_last=channels_last)
        return tensor.clone() if copy_all and changed is tensor else changed

    return map_tensors(moved, batch)


def laid_out(tensor: torch.Tensor, *, precision: Precision, channels_last: bool) -> torch.Tensor:
    """Return the tensor in the recipe's weight type and memory format; integers keep their type."""
    half = _HALF.get(precision)
    if half is not None and tensor.is_floating_point():
        tensor = tensor.to(half)
    if channels_last and tensor.dim() == 4:
        tensor = tensor.contiguous(memory_format=torch.channels_last)
    return tensor


def _convert_in_place(model: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    # Module.to() cannot swap fake parameters, so they are replaced one by one.
    done: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):  # noqa: SLF001 - the registries a module is made of
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = _converted(tensor, change, done)  # type: ignore[assignment]  # one of either kind


def _converted(
    tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor], done: dict[int, torch.Tensor]
) -> torch.Tensor:
    if id(tensor) not in done:
        with torch.no_grad():
            changed = change(tensor)
        if changed is not tensor and isinstance(tensor, nn.Parameter):
            changed = nn.Parameter(changed, requires_grad=tensor.requires_grad)
        done[id(tensor)] = changed
    return done[id(tensor)]
