"""What PyTorch before 1.11 kept for the backward pass, given back to today's in a child process that traces."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F  # noqa: N812 - PyTorch's own convention

if TYPE_CHECKING:
    from collections.abc import Callable


class _Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(scores)
        return scores.view_as(scores)

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def keep_inputs_of_softmax() -> None:
    """Let softmax, and what is made of it, keep its input beside its output.

    Before torch 1.11 its backward pass took the input itself and not just its type (transformers' ``pytorch_utils.py``
    tells the two signatures apart).
    """
    for owner, names in ((F, ("softmax", "log_softmax", "cross_entropy")), (torch.Tensor, ("softmax", "log_softmax"))):
        for name in names:
            setattr(owner, name, _keeping_input(getattr(owner, name)))


def _keeping_input(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    original = getattr(function, "__wrapped__", function)

    @functools.wraps(original)
    def keeping(scores: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        return original(_Kept.apply(scores), *rest, **named)

    return keeping
