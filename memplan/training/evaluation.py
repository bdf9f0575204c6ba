"""Evaluation between two training steps, as traced and live trainings run it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from torch import nn

_BATCHES = 2  # the second is evaluated while what the first returned is still held


def evaluate_batches(
    model: nn.Module,
    evaluate: Callable[[nn.Module, Any], Any],
    next_batch: Callable[[], Any],
    *,
    context: Callable[[], AbstractContextManager[Any]],
) -> None:
    """Evaluate two batches without gradients, as a loop does that keeps what was returned last.

    Args:
        model: is in evaluation mode meanwhile.
        evaluate: takes the model and a batch.
        next_batch: returns the next batch on the device, once the one before is dropped.
        context: makes the context of a forward pass of the training, such as autocast, which evaluation is in, too.
    """
    with _evaluation_mode(model), torch.no_grad():
        for _ in range(_BATCHES):
            batch = None
            batch = next_batch()
            with context():
                returned = evaluate(model, batch)  # noqa: F841 - held until the next batch is evaluated


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Have a model in evaluation mode while the context is open, and each of its modules in its own mode after it."""
    modes = [(each, each.training) for each in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, is_training in modes:
            module.training = is_training
