"""CTC loss on CUDA, whose kernels read lengths that fake tensors do not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException

from memplan.estimators.fake_tensors.fake_results import longest_target

if TYPE_CHECKING:
    from collections.abc import Sequence

_OPERATOR = torch.ops.aten._ctc_loss.default  # noqa: SLF001 - an operator
_NONE, _MEAN, _SUM = range(3)


def ctc_loss(  # noqa: PLR0917 - the operator's own signature
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor | Sequence[int],  # noqa: ARG001
    target_lengths: torch.Tensor | Sequence[int],
    blank: int = 0,  # noqa: ARG001
    reduction: int = _MEAN,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """Allocate what ``ctc_loss`` of ``aten/src/ATen/native/cuda/LossCTC.cu`` does.

    Raises:
        DynamicOutputShapeException: the length of the longest target is unknown.
    """
    longest = longest_target(targets, target_lengths)
    if longest is None:
        raise DynamicOutputShapeException(_OPERATOR)
    batched = log_probs if log_probs.dim() == 3 else log_probs.unsqueeze(1)
    losses: torch.Tensor = _Alignment.apply(batched, 2 * longest + 1)  # type: ignore[no-untyped-call]  # untyped in torch
    if zero_infinity:
        losses = torch.where(losses == float("inf"), losses.new_zeros(()), losses)
    if reduction == _MEAN:
        return (losses / torch.ones_like(losses)).mean()
    return losses.sum() if reduction == _SUM else losses


class _Alignment(torch.autograd.Function):
    """Saves the forward variables (alpha) of every step; the backward pass allocates as many (beta)."""

    @staticmethod
    def forward(ctx: Any, log_probs: torch.Tensor, states: int) -> torch.Tensor:
        steps, samples = log_probs.shape[:2]
        losses, alpha = log_probs.new_empty(samples), log_probs.new_empty(samples, steps, states)
        ctx.save_for_backward(log_probs, losses, alpha)
        return losses

    @staticmethod
    def backward(ctx: Any, _gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        log_probs, _losses, alpha = ctx.saved_tensors
        beta, gradient = torch.empty_like(alpha), torch.empty_like(log_probs)
        del beta
        return gradient, None
