"""How well the replay of the C library's heap predicts the resident peak of real training on this machine's CPU.

For each case one child process trains for a few steps and reads its peak (``VmHWM``), and another records every
allocation of the same steps with PyTorch's profiler, whose events are replayed here. Prints, in MiB: the tensors' own
peak, prediction and measurement with the thresholds as they come and with them fixed, and the errors. Linux with the
GNU C library only. Takes about ten minutes on two cores; name cases to run only those.

    python benchmarks/host_heap.py [unet/8 ...]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from memplan.estimators.allocators.host_heap import STEP_OVERHEAD_BYTES, HeapConfig, replay_heap
from memplan.units import KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEPS = 4
FIXED = {"MALLOC_MMAP_THRESHOLD_": str(MIB)}
FITTED = ("unet/2", "unet/8", "wide-unet/4", "transformer/4", "transformer/16", "mlp/64", "mlp/512", "residual/4",
          "residual/16", "residual/48")  # fmt: skip
UNSEEN = ("lstm/32", "vgg/8", "vgg/32", "decoder/4", "decoder/16", "separable/32")  # not used for any constant


def main() -> None:
    """Run the named cases, or all, and print a table."""
    print("case            tensors  predicted measured  error |  fixed: predicted measured  error")
    errors = [run_case(case) for case in sys.argv[1:] or (*FITTED, *UNSEEN)]
    for which, column in (("as they come", 0), ("fixed", 1)):
        sizes = [abs(pair[column]) for pair in errors]
        print(f"thresholds {which}: median {statistics.median(sizes):.1%}, largest {max(sizes):.1%}")


def run_case(case: str) -> tuple[float, float]:
    """Run one case; return the relative errors with growing and with fixed thresholds."""
    recorded = in_child("record", case, {})
    row, errors = f"{case:<16}", []
    for variables in ({}, FIXED):
        measured = in_child("measure", case, variables)
        peaks = replay_heap(recorded["blocks"], recorded["sizes"], config=HeapConfig.from_environment(variables))
        predicted = measured["before_bytes"] + STEP_OVERHEAD_BYTES + peaks.peak_resident_bytes
        errors.append(predicted / measured["peak_bytes"] - 1)
        row += "" if variables else f"{peaks.peak_requested_bytes >> 20:>8}"
        row += f"{predicted >> 20:>11}{measured['peak_bytes'] >> 20:>9}{errors[-1]:>+8.1%}" + (
            "" if variables else " |"
        )
    print(row, flush=True)
    return errors[0], errors[1]


def in_child(task: str, case: str, variables: dict[str, str]) -> Any:
    """Run one task in a process of its own; return its last line of output as JSON."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, __file__, "--child", task, case]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env={**environment, **variables})
    return json.loads(ended.stdout.splitlines()[-1])


def run_child(task: str, case: str) -> None:
    """Measure or record one case in this process."""
    torch.set_num_threads(2)
    torch.randn(512, 512) @ torch.randn(512, 512)  # starts the threads
    before_bytes = status_bytes("VmRSS")
    name, batch_size = case.split("/")
    if task == "measure":
        train(name, int(batch_size))
        print(json.dumps({"before_bytes": before_bytes, "peak_bytes": status_bytes("VmHWM")}))
        return
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        train(name, int(batch_size))
    blocks, sizes = numbered(allocations(profiler))
    print(json.dumps({"blocks": blocks, "sizes": sizes}))


def status_bytes(field: str) -> int:
    """Read one figure of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * KIB for line in lines if line.startswith(f"{field}:"))


def train(name: str, batch_size: int) -> None:
    """Train with AdamW for a few steps on random data."""
    torch.manual_seed(0)
    make_model, shape, classes = cases()[name]
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        is_text = len(shape) == 1 and classes > 1000
        inputs = torch.randint(classes, (batch_size, *shape)) if is_text else torch.randn(batch_size, *shape)
        outputs = model(inputs)
        outputs = outputs.flatten(0, 1) if is_text else outputs
        targets = torch.randint(outputs.shape[1], (outputs.shape[0], *outputs.shape[2:]))
        torch.nn.functional.cross_entropy(outputs, targets).backward()
        optimizer.step()
        optimizer.zero_grad()


def allocations(profiler: Any) -> Iterator[tuple[int, int]]:
    """Yield address and size of every event of the CPU allocator in order; frees have negative sizes."""
    kind = torch._C._profiler._EventType.Allocation
    pending, found = list(profiler.profiler.kineto_results.experimental_event_tree()), []
    while pending:
        node = pending.pop()
        pending.extend(node.children)
        if node.tag == kind:
            found.append(node)
    for node in sorted(found, key=lambda node: node.start_time_ns):
        yield node.extra_fields.ptr, node.extra_fields.alloc_size


def numbered(events: Iterator[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Number the blocks, since addresses are used again; frees of unseen blocks are left out."""
    live: dict[int, int] = {}
    blocks: list[int] = []
    sizes: list[int] = []
    for address, size_bytes in events:
        if address in live:
            blocks.append(live.pop(address))
            sizes.append(0)
        if size_bytes > 0:
            live[address] = len(blocks)
            blocks.append(live[address])
            sizes.append(size_bytes)
    return blocks, sizes


def cases() -> dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]]:
    """Return each model with the shape of one sample and its number of classes or words."""
    return {
        "unet": (lambda: UNet(16), (3, 160, 160), 5),
        "wide-unet": (lambda: UNet(32), (3, 224, 224), 5),
        "transformer": (lambda: Transformer(words=5000, width=256, depth=4, causal=False), (128,), 5000),
        "decoder": (lambda: Transformer(words=8000, width=384, depth=6, causal=True), (192,), 8000),
        "mlp": (mlp, (1024,), 10),
        "residual": (residual, (3, 128, 128), 10),
        "vgg": (vgg, (3, 96, 96), 10),
        "separable": (separable, (3, 112, 112), 10),
        "lstm": (LongShortTermMemory, (96,), 6000),
    }


class UNet(nn.Module):
    """A U-Net of three scales."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.ModuleList([stage(3, width), stage(width, 2 * width), stage(2 * width, 4 * width)])
        self.up = nn.ModuleList([stage(6 * width, 2 * width), stage(3 * width, width)])
        self.pool, self.head = nn.MaxPool2d(2), nn.Conv2d(width, 5, 1)
        self.enlarge = nn.Upsample(scale_factor=2, mode="bilinear")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return a score per pixel and class."""
        fine = self.down[0](images)
        middle = self.down[1](self.pool(fine))
        coarse = self.down[2](self.pool(middle))
        middle = self.up[0](torch.cat([self.enlarge(coarse), middle], 1))
        return self.head(self.up[1](torch.cat([self.enlarge(middle), fine], 1)))


def stage(inputs: int, outputs: int) -> nn.Module:
    """Two convolutions with batch norm."""
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class Transformer(nn.Module):
    """Embedding, encoder layers with dropout, and a head over the words."""

    def __init__(self, *, words: int, width: int, depth: int, causal: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.1)
        self.embed, self.head, self.causal = nn.Embedding(words, width), nn.Linear(width, words), causal
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return a score per position and word."""
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1]) if self.causal else None
        return self.head(self.layers(self.embed(words), mask=mask, is_causal=self.causal))


class LongShortTermMemory(nn.Module):
    """Embedding, two LSTM layers, and a head over the words."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(6000, 256), nn.LSTM(256, 256, num_layers=2, batch_first=True)
        self.head = nn.Linear(256, 6000)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return a score per position and word."""
        return self.head(self.lstm(self.embed(words))[0])


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the features."""
        return (self.body(images) + self.shortcut(images)).relu()


def residual() -> nn.Module:
    """Four residual blocks after a stem."""
    stem = [nn.Conv2d(3, 32, 7, 2, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    blocks = [Residual(32, 32, 1), Residual(32, 64, 2), Residual(64, 128, 2), Residual(128, 256, 2)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


def mlp() -> nn.Module:
    """Six wide linear layers."""
    layers = [each for _ in range(6) for each in (nn.Linear(1024, 1024), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(1024, 10))


def vgg() -> nn.Module:
    """Plain convolutions with a large classifier."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128), (128, 256)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.Conv2d(outputs, outputs, 3, padding=1)]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 36, 1024), nn.ReLU(), nn.Linear(1024, 10))


def separable() -> nn.Module:
    """Depthwise-separable convolutions with group norm and GELU."""
    layers: list[nn.Module] = [nn.Conv2d(3, 48, 4, 4)]
    for inputs, outputs in ((48, 48), (48, 96), (96, 192)):
        layers += [nn.Conv2d(inputs, inputs, 7, padding=3, groups=inputs), nn.GroupNorm(1, inputs)]
        layers += [nn.Conv2d(inputs, 4 * inputs, 1), nn.GELU(), nn.Conv2d(4 * inputs, outputs, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(192, 10))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        run_child(sys.argv[2], sys.argv[3])
    else:
        main()
