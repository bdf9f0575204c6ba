"""Models and batches in the number format and memory layout that a recipe and its workload ask for."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from memplan.training.batches import map_tensors


def convert_in_place(
    model: nn.Module, *, dtype: torch.dtype | None, channels_last: bool, weights_only: bool = False
) -> None:
    """Convert a model's tensors to a type and memory format; tied tensors stay tied.

    Fake parameters are replaced one by one, because ``Module.to`` cannot swap them.

    Args:
        model: the model.
        dtype: type of its floating-point tensors; None where they stay as they are.
        channels_last: whether 4-D tensors use the channels-last format.
        weights_only: whether buffers stay as they are.
    """
    done: dict[int, torch.Tensor] = {}
    for module in model.modules():
        registries: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)  # noqa: SLF001 - what a module is made of
        for tensors in registries[:1] if weights_only else registries:
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                if id(tensor) not in done:
                    done[id(tensor)] = _converted_weight(tensor, dtype, channels_last=channels_last)
                tensors[name] = done[id(tensor)]


def moved_batch(batch: Any, *, dtype: torch.dtype | None, copy_all: bool) -> Any:
    """Return the batch in the recipe's dtype, as after a move to the device.

    Args:
        batch: tensors on the host.
        dtype: that of floating-point inputs; None where they stay as they are.
        copy_all: whether unchanged tensors are copied too, as to another device. Else they are detached, so that a
            gradient left on the batch does not reach the next step.
    """

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        changed = _converted(tensor, dtype, channels_last=False)
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


def _converted_weight(tensor: torch.Tensor, dtype: torch.dtype | None, *, channels_last: bool) -> torch.Tensor:
    with torch.no_grad():
        changed = _converted(tensor, dtype, channels_last=channels_last)
    is_new_parameter = changed is not tensor and isinstance(tensor, nn.Parameter)
    return nn.Parameter(changed, requires_grad=tensor.requires_grad) if is_new_parameter else changed


def _converted(tensor: torch.Tensor, dtype: torch.dtype | None, *, channels_last: bool) -> torch.Tensor:
    """Return the tensor in the type and memory format; integers keep their dtype."""
    if dtype is not None and tensor.is_floating_point():
        tensor = tensor.to(dtype)
    if channels_last and tensor.dim() == 4:
        tensor = tensor.to(memory_format=torch.channels_last)  # windows of one pixel too, unlike ``contiguous``
    return tensor
