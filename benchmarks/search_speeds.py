"""How many samples a second some micro-batches of one model run, in one process and by turns.

    python benchmarks/search_speeds.py MODEL DEVICE SIZE,...

prints one line of JSON, size to samples per second. On the CPU the seconds are those of the processor, which other work
on the machine does not lengthen; on a card they are wall time, the card idle before and after. The fastest step counts.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

import torch
from search_models import MODELS

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 5


def clock_of(device: str) -> Callable[[], float]:
    """Return what tells the time on a device."""
    if device == "cpu":
        return time.process_time

    def after_the_card() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return after_the_card


def main() -> None:
    """Time the sizes by turns."""
    name, device, sizes = sys.argv[1:]
    workload, clock = MODELS[name](None), clock_of(device)
    model = workload.model().to(device)
    optimizer = workload.optimizer(model.parameters())
    fastest_s: dict[int, float] = {}
    for number in range(ROUNDS + 1):
        for size in map(int, sizes.split(",")):
            batch = torch.utils._pytree.tree_map(lambda each: each.to(device), workload.batch(size))
            started = clock()
            optimizer.zero_grad()
            workload.loss(model, batch).backward()
            optimizer.step()
            if number:  # the first round warms up
                fastest_s[size] = min(fastest_s.get(size, float("inf")), clock() - started)
    print(json.dumps({str(size): round(size / step_s, 3) for size, step_s in fastest_s.items()}))


if __name__ == "__main__":
    main()
