"""Models and batches in the number format and memory layout that a recipe and its workload ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from memplan.training.batches import map_tensors
from memplan.training.half_precision import weights_dtype

if TYPE_CHECKING:
    from memplan.recipe import Precision


def convert_in_place(model: nn.Module, *, precision: Precision, channels_last: bool) -> None:
    """Convert a model's tensors to the recipe's weight dtype and memory format; tied tensors stay tied.

    Fake parameters are replaced one by one, because ``Module.to`` cannot swap them.
    """
    done: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):  # noqa: SLF001 - the registries a module is made of
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                if id(tensor) not in done:
                    done[id(tensor)] = _converted_weight(tensor, precision, channels_last=channels_last)
                tensors[name] = done[id(tensor)]  # type: ignore[assignment]  # of either kind


def moved_batch(batch: Any, *, precision: Precision, copy_all: bool) -> Any:
    """Return the batch in the recipe's dtype, as after a move to the device.

    Args:
        batch: tensors on the host.
        precision: gives the dtype of floating-point inputs.
        copy_all: whether unchanged tensors are copied too, as to another device. Else they are detached, so that a
            gradient left on the batch does not reach the next step.
    """

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        changed = _converted(tensor, precision, channels_last=False)
        if changed is not tensor:
            return changed
        return tensor.clone() if copy_all else tensor.detach().requires_grad_(tensor.requires_grad)

    return map_tensors(moved, batch)


def channels_last_batch(batch: Any) -> Any:
    """Return the batch with its 4-D tensors in channels-last, which are copied on the device."""

    def laid_out(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() != 4:
            return tensor
        return tensor.detach().contiguous(memory_format=torch.channels_last).requires_grad_(tensor.requires_grad)

    return map_tensors(laid_out, batch)


def _converted_weight(tensor: torch.Tensor, precision: Precision, *, channels_last: bool) -> torch.Tensor:
    with torch.no_grad():
        changed = _converted(tensor, precision, channels_last=channels_last)
    is_new_parameter = changed is not tensor and isinstance(tensor, nn.Parameter)
    return nn.Parameter(changed, requires_grad=tensor.requires_grad) if is_new_parameter else changed


def _converted(tensor: torch.Tensor, precision: Precision, *, channels_last: bool) -> torch.Tensor:
    """Return the tensor in the recipe's weight dtype and memory format; integers keep their dtype."""
    half = weights_dtype(precision)
    if half is not None and tensor.is_floating_point():
        tensor = tensor.to(half)
    if channels_last and tensor.dim() == 4:
        tensor = tensor.to(memory_format=torch.channels_last)  # windows of one pixel too, unlike ``contiguous``
    return tensor
