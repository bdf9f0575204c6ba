"""The loss of a linear layer in chunks, ``torch.nn.functional.linear_cross_entropy`` from torch 2.13 on, as on a card.

Into which chunks it divides a batch, and in which types it sums, follows from the device of its operands
(``torch/nn/modules/linear_cross_entropy_options.py``).
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from memplan.estimators.fake_tensors.replaced import replaced

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

_OPTIONS = "LinearCrossEntropyOptions"
_SETTLE = "_adjust"
MODULES = "torch.nn.modules.linear_cross_entropy"  # how the names of those begin in which it is written


def settling_losses_on(card: torch.device) -> AbstractContextManager[None]:
    """Return a context in which options of the loss are settled as for operands on the card; older PyTorch has none."""
    options = getattr(torch.nn, _OPTIONS, None)
    if options is None:
        return nullcontext()
    settle: Callable[..., Any] = getattr(options, _SETTLE)

    def settle_on_card(self: Any, *sizes: Any, **named: Any) -> Any:
        return settle(self, *sizes, **{**named, "device": card})

    return replaced(options, _SETTLE, settle_on_card)
