"""What a call really takes on the CPU, read from the allocator's own events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.torch_version import TorchVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

AS_MEASURED = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512" or torch.__version__ < TorchVersion("2.11"),
    reason="oneDNN's layouts were measured with AVX-512 and versions 3.10 to 3.12",
)


def measured_peak_bytes(run: Callable[[], object]) -> int:
    """Return the most that tensors and what kernels take inside come to while ``run`` is called."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        kept = run()
    nodes = _walk(profiler.profiler.kineto_results.experimental_event_tree())
    allocation = torch._C._profiler._EventType.Allocation
    level = peak = 0
    for node in sorted((each for each in nodes if each.tag == allocation), key=lambda each: each.start_time_ns):
        level += node.extra_fields.alloc_size
        peak = max(peak, level)
    del kept
    return peak


def _walk(nodes: list[Any]) -> Iterator[Any]:
    for node in nodes:
        yield node
        yield from _walk(node.children)
