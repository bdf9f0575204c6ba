"""Enabling activation checkpointing by the model's own method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.errors import WorkloadError

if TYPE_CHECKING:
    from torch import nn

_SWITCHES = ("gradient_checkpointing_enable", "set_grad_checkpointing")  # transformers, timm


def enable_checkpointing(model: nn.Module) -> None:
    """Switch it on by the first of the usual methods that the model has.

    Raises:
        WorkloadError: it has none of them.
    """
    for name in _SWITCHES:
        switch = getattr(model, name, None)
        if callable(switch):
            switch()
            return
    raise WorkloadError(
        f"{type(model).__name__} offers no way to switch activation checkpointing on",
        hint=f"give the model a method {_SWITCHES[0]}(), or leave activation_checkpointing off",
    )
