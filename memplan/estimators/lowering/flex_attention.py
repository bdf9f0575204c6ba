"""FlexAttention on a card: compiled, one kernel without a score matrix; uncompiled, with the whole matrix.

Torch does not train it on CPU tensors, and its operator accepts no fake ones. Sources, of torch 2.13: for results and
saved tensors of the kernel ``torch/_higher_order_ops/flex_attention.py`` and ``torch/_inductor/kernel/flex``;
uncompiled, ``math_attention`` and ``sdpa_dense_backward`` there, which recomputes the scores.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch._higher_order_ops.flex_attention import math_attention, sdpa_dense_backward

if TYPE_CHECKING:
    from collections.abc import Callable

_COMPILED_FRAME = "compile_wrapper"  # torch/_dynamo/eval_frame.py
_UNCOMPILED = (
    "FlexAttention is called uncompiled: its whole matrix of scores is counted, which torch.compile(flex_attention) "
    "does without"
)


class FlexAttention:
    """Replaces FlexAttention's operator, and records whether it was called uncompiled."""

    def __init__(self) -> None:
        self._was_uncompiled = False

    def install(self) -> None:
        """Let FlexAttention train on CPU tensors, for the rest of this process."""
        from torch.nn.attention import flex_attention as module  # noqa: PLC0415 - needed only for a card

        module._validate_device = lambda *_tensors: None  # noqa: SLF001 - refuses training on the CPU
        module.__dict__["flex_attention_hop"] = self

    @property
    def notes(self) -> tuple[str, ...]:
        """Say whether score matrices are counted, in one phrase."""
        return (_UNCOMPILED,) if self._was_uncompiled else ()

    def __call__(  # noqa: PLR0917 - the operator's own signature
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        score_mod: Callable[..., torch.Tensor],
        block_mask: tuple[Any, ...],
        scale: float,
        kernel_options: dict[str, Any],  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the output, the logsumexp of the scores, and an empty tensor for the maximum scores."""
        query, key, value = _autocast(query, key, value)
        dense = None if _is_compiled() else (score_mod, block_mask, scale)
        self._was_uncompiled |= dense is not None
        made: tuple[torch.Tensor, ...] = _Attention.apply(dense, _one_score(score_mod), query, key, value)  # type: ignore[no-untyped-call]  # untyped in torch
        output, logsumexp = made
        return output, logsumexp, query.new_empty(0)


def _autocast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if not torch.is_autocast_enabled("cpu"):
        return tensors
    dtype = torch.get_autocast_dtype("cpu")
    return tuple(each.to(dtype) for each in tensors)


def _is_compiled() -> bool:
    """Whether a function that calls FlexAttention is compiled; FlexAttention itself always compiles its operator."""
    frame, compiled = sys._getframe(), 0  # noqa: SLF001 - cheaper than inspect.stack()
    while frame.f_back is not None:
        frame = frame.f_back
        compiled += frame.f_code.co_name == _COMPILED_FRAME
    return compiled > 1


def _one_score(score_mod: Callable[..., torch.Tensor]) -> torch.Tensor:
    """Call the user's function once, so that parameters in its closure get gradients."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex  # noqa: PLC0415

    places = [torch.zeros((), dtype=torch.int) for _ in range(4)]
    with TransformGetItemToIndex():
        return score_mod(torch.zeros(()), *places)


def _joint(_score: torch.Tensor, *places_and_gradient: torch.Tensor) -> list[torch.Tensor | None]:
    """Replace the derivative of the user's function: one product with the gradient, none for the positions."""
    return [places_and_gradient[-1] * 1, None, None, None, None]


class _Attention(torch.autograd.Function):
    """Allocates what the kernels do; ``dense`` holds the arguments of the uncompiled operator, else None."""

    @staticmethod
    def forward(
        ctx: Any, dense: tuple[Any, ...] | None, one_score: torch.Tensor, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        query, key, value = tensors
        if dense is None:
            output = query.new_empty(*query.shape[:-1], value.shape[-1])
            logsumexp = query.new_empty(query.shape[:-1], dtype=torch.float32)
        else:
            score_mod, block_mask, scale = dense
            output, logsumexp, _ = math_attention(query, key, value, score_mod, block_mask, scale, {})
        ctx.dense, ctx.score_dtype = dense, one_score.dtype
        ctx.save_for_backward(*tensors, output, logsumexp)
        return output, logsumexp

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, of_sums: torch.Tensor) -> tuple[Any, ...]:
        query, key, value, output, logsumexp = ctx.saved_tensors
        of_score = query.new_zeros((), dtype=ctx.score_dtype)
        if ctx.dense is None:
            rows = torch.empty_like(logsumexp)  # sums of output times gradient
            gradients = tuple(torch.empty_like(each) for each in (query, key, value))
            del rows
            return None, of_score, *gradients
        score_mod, block_mask, scale = ctx.dense
        of_query, of_key, of_value, _ = sdpa_dense_backward(
            query, key, value, output, logsumexp, gradient, of_sums, score_mod, _joint, block_mask, scale, {}, (), ()
        )
        return None, of_score, of_query, of_key, of_value
