"""Inference mode without its shortcut around autograd, behind which composite operators are not taken apart.

There a dispatch mode sees ``linear`` or ``scaled_dot_product_attention`` as one operator, whose parts and whose kernels
for another device it misses. Without gradients both allocate the same.
"""

from __future__ import annotations

import functools

import torch


@functools.cache
def trace_inference_mode() -> None:
    """Let ``torch.inference_mode`` only turn gradients off, for the rest of this process."""
    torch.inference_mode.__enter__ = _turn_gradients_off  # type: ignore[method-assign]  # that is the purpose


def _turn_gradients_off(context: torch.inference_mode) -> None:
    context._inference_mode_context = torch.set_grad_enabled(not context.mode)  # type: ignore[assignment]  # noqa: SLF001 - what its own __exit__ leaves
