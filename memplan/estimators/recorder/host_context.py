"""What a process that trains on the CPU holds before the model exists: the interpreter, torch, the user's modules."""

from __future__ import annotations

import psutil
import torch


def resident_context_bytes() -> int:
    """Return the resident set of this process once all that every training step loads late is loaded."""
    run_warmup_step()
    resident: int = psutil.Process().memory_info().rss
    return resident


def run_warmup_step() -> None:
    """Start torch's threads and train one number once on the CPU.

    The first use of an optimizer alone imports some 80 MiB of torch (2.13). There is no matrix product, because a
    workload that has none never pays for the library behind it.
    """
    torch.ones(1 << 20).exp_()  # elementwise loops are split at 2**15 elements, so this reaches 32 threads
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.sum().backward()  # type: ignore[no-untyped-call]  # torch's own lack of a signature
    optimizer.step()
