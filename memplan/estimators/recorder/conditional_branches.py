"""``torch.cond`` in a trace: the branch that the condition takes, computed again in the backward pass.

``CondAutogradOp`` (``torch/_higher_order_ops/cond.py``, torch 2.13) keeps the operands alone, and its backward pass
runs a graph of the branch and its derivative: as checkpointing does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint

from memplan.estimators.fake_tensors.replaced import replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager


def tracing_conditional_branches() -> AbstractContextManager[None]:
    """Run the branches of ``torch.cond`` in Python while the context is open."""
    return replaced(torch, "cond", _cond)


def _cond(
    pred: torch.Tensor | bool,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    operands: Sequence[Any] = (),
) -> Any:
    return checkpoint(true_fn if bool(pred) else false_fn, *operands, use_reentrant=False)
