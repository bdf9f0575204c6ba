"""The other finders of the search benchmark, each in a process of its own with a real memory limit.

    python benchmarks/search_tools.py TOOL MODEL DEVICE BUDGET_BYTES

prints one line of JSON: the size it found, its trials and their wall time, imports left out. On the CPU the limit is
``RLIMIT_DATA``, which a second process moves every few milliseconds so that allocations fail, with PyTorch's own error,
once the resident set has reached the budget. As for memplan's trials, what is resident with torch loaded counts; what
the finders' own libraries take is left out, to their advantage. On a card the limit is
``torch.cuda.set_per_process_memory_fraction``.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from search_models import MODELS

from memplan.probe.cpu_readings import peak_resident_bytes, resident_bytes
from memplan.training.host_context import run_warmup_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan import Workload

STEPS_PER_TRIAL = 3  # Lightning's default, and the fewest that hold optimizer state and show that it stays
LOOK_EVERY_S = 0.004
ACCELERATE_START = 128  # as in the example of accelerate's documentation


def cap(device: str, budget_bytes: int, before_imports_bytes: int) -> None:
    """Make allocations beyond the budget fail in this process."""
    if device == "cpu":
        limit_resident_bytes(budget_bytes + resident_bytes() - before_imports_bytes)
    else:
        total_bytes = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(budget_bytes / total_bytes, device)


def limit_resident_bytes(limit_bytes: int) -> None:
    """Leave a process behind that lets this one's private memory grow by no more than is left of the limit.

    ``RLIMIT_DATA`` alone would not do: it counts pages that were never touched, and a heap that grows into those goes
    unnoticed.
    """
    pid = os.getpid()
    if os.fork():
        return
    with contextlib.suppress(KeyError, OSError):  # the process has ended
        while os.getppid() == pid:
            _move_limit(pid, limit_bytes)
            time.sleep(LOOK_EVERY_S)
    os._exit(0)


def _move_limit(pid: int, limit_bytes: int) -> None:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    resident, private = (int(status[name].split()[0]) * 1024 for name in ("VmRSS", "VmData"))
    limit = private + max(limit_bytes - resident, 0)
    resource.prlimit(pid, resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))


def with_lightning(mode: str) -> Callable[[Workload, str], tuple[int | None, int]]:
    """Lightning's ``Tuner.scale_batch_size`` with its defaults."""
    import lightning
    from lightning.pytorch.tuner import Tuner

    class Module(lightning.LightningModule):
        def __init__(self, workload: Workload) -> None:
            super().__init__()
            self.workload, self.net, self.batch_size, self.trials = workload, workload.model(), 2, 0

        def on_train_start(self) -> None:
            self.trials += 1

        def training_step(self, batch: Any, _index: int) -> torch.Tensor:
            return self.workload.loss(self.net, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self.workload.optimizer(self.net.parameters())

        def train_dataloader(self) -> torch.utils.data.DataLoader[Any]:
            collate = lambda numbers: self.workload.batch(len(numbers))  # noqa: E731 - a closure over the workload
            return torch.utils.data.DataLoader(range(100_000), batch_size=self.batch_size, collate_fn=collate)

    def find(workload: Workload, device: str) -> tuple[int | None, int]:
        trainer = lightning.Trainer(
            accelerator="cpu" if device == "cpu" else "gpu", devices=1, logger=False, enable_progress_bar=False,
            enable_model_summary=False, max_epochs=1,
        )  # fmt: skip
        module = Module(workload)
        found = Tuner(trainer).scale_batch_size(module, mode=mode, steps_per_trial=STEPS_PER_TRIAL)
        return found, module.trials

    return find


def with_accelerate() -> Callable[[Workload, str], tuple[int | None, int]]:
    """Accelerate's ``find_executable_batch_size`` of accelerate around a plain loop."""
    from accelerate.utils import find_executable_batch_size

    def find(workload: Workload, device: str) -> tuple[int | None, int]:
        trials = 0

        @find_executable_batch_size(starting_batch_size=ACCELERATE_START)
        def train(batch_size: int) -> int:
            nonlocal trials
            trials += 1
            model = workload.model().to(device)
            optimizer = workload.optimizer(model.parameters())
            for _ in range(STEPS_PER_TRIAL):
                batch = torch.utils._pytree.tree_map(lambda each: each.to(device), workload.batch(batch_size))
                optimizer.zero_grad()
                workload.loss(model, batch).backward()
                optimizer.step()
            return batch_size

        return train(), trials

    return find


TOOLS: dict[str, Callable[[], Callable[[Workload, str], tuple[int | None, int]]]] = {
    "lightning power": lambda: with_lightning("power"),
    "lightning binsearch": lambda: with_lightning("binsearch"),
    "accelerate": with_accelerate,
}


def main() -> None:
    """Run one finder on one model."""
    tool, model, device, budget = sys.argv[1:]
    warnings.simplefilter("ignore")
    run_warmup_step()
    before_bytes = resident_bytes()
    find = TOOLS[tool]()
    imports_bytes = resident_bytes() - before_bytes
    cap(device, int(budget), before_bytes)
    started = time.perf_counter()
    try:
        (size, trials), failure = find(MODELS[model](None), device), None
    except Exception as error:  # noqa: BLE001 - a finder that fails is a result
        size, trials, failure = None, None, f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    found = {"size": size, "trials": trials, "wall_s": round(time.perf_counter() - started, 2), "failure": failure}
    if device == "cpu":
        found["peak_beyond_imports_bytes"] = peak_resident_bytes() - imports_bytes
    print(json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
