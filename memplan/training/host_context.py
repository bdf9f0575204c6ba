"""Memory of a CPU training process before the model exists: the interpreter, torch, the user's modules."""

from __future__ import annotations

import psutil
import torch


def resident_context_bytes() -> int:
    """Return the resident set size of this process after a warm-up step, in bytes."""
    run_warmup_step()
    resident: int = psutil.Process().memory_info().rss
    return resident


def run_warmup_step() -> None:
    """Start torch's threads and run one tiny training step on the CPU.

    The first use of an optimizer imports about 80 MiB of torch modules (2.13). The step has no matrix product, because
    not every workload loads the library behind it.
    """
    torch.ones(1 << 20).exp_()  # elementwise loops are split at 2**15 elements, so this reaches 32 threads
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.sum().backward()  # type: ignore[no-untyped-call]  # torch's own lack of a signature
    optimizer.step()
