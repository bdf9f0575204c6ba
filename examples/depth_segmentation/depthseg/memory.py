"""Peak memory of this process."""

from pathlib import Path

import torch

MIB = 2**20


def peak_memory(device):
    """Peaks in bytes: allocated and reserved on a CUDA device, resident set on the CPU."""
    if device.type == "cuda":
        return {
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(device),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(device),
        }
    return {"peak_resident_bytes": _peak_resident_bytes()}


def describe(peaks):
    """Write the peaks in one line."""
    named = {name.removesuffix("_bytes").replace("_", " "): peak for name, peak in peaks.items()}
    return ", ".join(f"{name} {peak / MIB:.1f} MiB" for name, peak in named.items())


def _peak_resident_bytes():
    # getrusage's ru_maxrss would do, were it not inherited from the process that started this one
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM line")
