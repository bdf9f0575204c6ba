"""What a process that trains on the CPU holds before the model exists: the interpreter, torch, the user's modules."""

from __future__ import annotations

import psutil
import torch


def resident_context_bytes() -> int:
    """Return the resident set of this process once all that every training step loads late is loaded.

    The first use of an optimizer alone imports some 80 MiB of torch (2.13), so a toy step is taken first.
    """
    layer = torch.nn.Linear(512, 512)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.ones(1, 512)).sum().backward()
    optimizer.step()
    resident: int = psutil.Process().memory_info().rss
    return resident
