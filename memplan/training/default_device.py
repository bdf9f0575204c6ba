"""The device that tensors are made on by default, which code may have set to a card that is not there."""

from __future__ import annotations

import torch


def forget_default_device() -> None:
    """Let tensors be made on the CPU again, as in a process where ``torch.set_default_device`` was never called.

    With None alone, PyTorch 2.9 and 2.10 would keep that, and ``torch.get_default_device`` would end with an error.
    """
    torch.set_default_device(None)
    del torch._GLOBAL_DEVICE_CONTEXT.device_context  # noqa: SLF001 - see above
