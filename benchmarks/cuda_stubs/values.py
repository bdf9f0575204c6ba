"""Values that a card would compute and that decide what a step allocates; on stubs they are whatever a block held."""

from __future__ import annotations

import sys
from typing import Any

import torch

STUBS_VARIABLE = "STUB_NAME"  # set by ``run.py`` for every command that it runs on stubs


def answer_whether_masks_hide(*, hides: bool, device: str) -> None:
    """Let masks on a device hide something, or nothing, for the rest of this process.

    transformers asks whether all positions may be attended to, and whether all positions follow each other
    (``masking_utils.py``, which is imported by now), and makes no mask then.
    """

    def answering(asked: Any) -> Any:
        def answered(mask: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            answer = asked(mask, *args, **kwargs)
            is_asked_about = answer.dim() == 0 and answer.device.type == device
            return answer.copy_(torch.tensor(not hides)) if is_asked_about else answer

        return answered

    torch.Tensor.all, torch.all = answering(torch.Tensor.all), answering(torch.all)
    masks = sys.modules.get("transformers.masking_utils")
    if hasattr(masks, "fast_all"):
        masks.fast_all = answering(masks.fast_all)


def answer_that_gradients_are_finite() -> None:
    """Let gradient scalers find nothing infinite for the rest of this process: optimizers step."""
    unscaled = torch.amp.GradScaler._unscale_grads_

    def answered(*args: Any, **kwargs: Any) -> dict[torch.device, torch.Tensor]:
        found = unscaled(*args, **kwargs)
        for each in found.values():
            each.copy_(torch.zeros(()))
        return found

    torch.amp.GradScaler._unscale_grads_ = answered


def answer_that_norms_are_valid() -> None:
    """Let DeepSpeed find norms of gradients finite, and nothing overflown, for the rest of this process: it steps."""
    for name, module in list(sys.modules.items()):
        if name.startswith("deepspeed.runtime."):
            if hasattr(module, "is_invalid_grad_norm"):
                module.is_invalid_grad_norm = lambda _: False  # type: ignore[attr-defined]
            for kind in vars(module).values():
                if isinstance(kind, type) and "has_overflow" in vars(kind):
                    _answer_that_none_overflow(kind)


def _answer_that_none_overflow(kind: Any) -> None:
    asked = kind.has_overflow

    def answered(*args: Any, **kwargs: Any) -> bool:
        asked(*args, **kwargs)
        return False

    kind.has_overflow = answered
