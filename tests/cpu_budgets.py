"""Budgets of trials on the CPU, chosen beside the CPU build of PyTorch, where CUDA builds keep twice as much."""

from __future__ import annotations

import functools
import subprocess
import sys
from dataclasses import dataclass

from memplan.units import MIB

CPU_BUILD_BYTES = 300 * MIB  # what a process holds that has taken a step with PyTorch 2.13
VARIES_BY_BYTES = 128 * MIB  # with the state of the page cache
MAX_UTIL, MIN_UTIL = 0.8, 0.6
READING = """
import psutil, torch
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters())
net(torch.ones(2, 4)).sum().backward()
optimizer.step()
print(psutil.Process().memory_info().rss)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuBudget:
    """A budget, and where its band begins: it ends at 80 %.

    Args:
        total_bytes: the budget.
        min_util: the band's begin, as a share of the budget.
    """

    total_bytes: int
    min_util: float

    @property
    def text(self) -> str:
        """The budget as it is written on a command line."""
        return f"{self.total_bytes // MIB}MiB"

    @property
    def options(self) -> tuple[str, ...]:
        """Both as options of ``memplan probe``."""
        return ("--budget", self.text, "--min-util", str(self.min_util))


@functools.cache
def beyond_cpu_build_bytes() -> int:
    """Return how much more a process holds after a step with this build of PyTorch; 0 where it is about as much."""
    ended = subprocess.run([sys.executable, "-c", READING], capture_output=True, text=True, check=True)
    beyond = int(ended.stdout) - CPU_BUILD_BYTES
    return beyond if beyond > VARIES_BY_BYTES else 0


def cpu_budget(size_mib: int) -> CpuBudget:
    """Return a budget with the room for training, up to the band and up to its end, that one has beside a CPU build."""
    beyond_mib = beyond_cpu_build_bytes() // MIB
    total_mib = size_mib + round(beyond_mib / MAX_UTIL)
    min_util = round((MIN_UTIL * size_mib + beyond_mib) / total_mib, 3)
    return CpuBudget(total_bytes=total_mib * MIB, min_util=min_util)
