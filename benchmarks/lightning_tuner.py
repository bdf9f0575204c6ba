"""Lightning's own ``Tuner.scale_batch_size`` beside ``memplan.integrations.lightning.tune``, on a real training.

Run it with ``python benchmarks/lightning_tuner.py`` (two to five minutes on two cores, no GPU). The training is that of
``examples/lightning_hydra``, with few channels and long waves so that memory and not time is what it needs. The CPU
knows no budget, so for the Tuner a step that holds more than that after its forward pass raises the error by which
it knows that the CPU's memory ran out. The batch that each of them finds is then trained for five steps in a process of
its own without any limit, whose peak resident set over the budget is the utilisation shown; memplan aims at 60 to 80 %.
A trial is one start of the training loop; memplan's run in child processes, the Tuner's in the user's own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from memplan.devices.host_memory import resident_bytes
from memplan.units import GIB

BUDGET_BYTES = 1 * GIB
FIRST_BATCH_SIZE = 2
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "lightning_hydra"
SETTINGS = {"max_epochs": 1, "accelerator": "cpu", "logger": False, "enable_checkpointing": False,
            "enable_progress_bar": False, "enable_model_summary": False}  # fmt: skip
METHODS = ("Tuner, power", "Tuner, binsearch", "memplan, fp32", "memplan")


def module_and_data(batch_size: int) -> tuple[Any, Any]:
    """Make the example's module and datamodule; a sample takes about 8 MiB."""
    import torch

    sys.path.insert(0, str(EXAMPLE))
    waveforms = __import__("waveforms")

    class Net(waveforms.WaveformNet):
        """Without Hydra's partial in its hyper-parameters, which the Tuner could not load from its checkpoint."""

        def __init__(self) -> None:
            super().__init__(width=4, optimizer=None)
            self.lr = 1e-3
            self.is_held_to_budget = False

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            if self.is_held_to_budget and resident_bytes() > BUDGET_BYTES:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: the step is beyond the budget")
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=self.lr)

    return Net(), waveforms.WaveformData(batch_size=batch_size, length=65536, count=4096, num_workers=0)


def found_by_tuner(mode: str) -> dict[str, Any]:
    """Let the Tuner search under the kernel's limit."""
    import lightning.pytorch as pl
    from lightning.pytorch.tuner import Tuner, batch_size_scaling

    module, data = module_and_data(FIRST_BATCH_SIZE)
    module.is_held_to_budget = True
    runs, try_once = [], batch_size_scaling._try_loop_run

    def counted(*arguments: Any) -> None:
        runs.append(arguments)
        try_once(*arguments)

    batch_size_scaling._try_loop_run = counted
    trainer = pl.Trainer(**SETTINGS)
    Tuner(trainer).scale_batch_size(module, datamodule=data, mode=mode, init_val=FIRST_BATCH_SIZE)
    return {"batch_size": data.hparams.batch_size, "trials": len(runs), "precision": "32-true"}


def found_by_memplan(precisions: list[str] | None) -> dict[str, Any]:
    """Let memplan plan for the same budget."""
    from memplan.integrations.lightning import tune

    module, data = module_and_data(FIRST_BATCH_SIZE)
    with tempfile.TemporaryDirectory() as store:
        settings, plan = tune(
            SETTINGS, module, datamodule=data, budget=BUDGET_BYTES, precisions=precisions, store=store
        )
    return {
        "batch_size": data.hparams.batch_size,
        "trials": len(plan.trials),
        "precision": settings.get("precision", "32-true"),
    }


def trained(batch_size: int, precision: str) -> dict[str, Any]:
    """Train five steps and return the peak of the resident set."""
    import lightning.pytorch as pl

    module, data = module_and_data(batch_size)
    trainer = pl.Trainer(**{**SETTINGS, "max_steps": 5, "precision": precision})
    started = time.perf_counter()
    trainer.fit(module, datamodule=data)
    step_s = (time.perf_counter() - started) / 5
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"peak_bytes": peak_bytes, "samples_per_s": batch_size / step_s}


def in_process(*words: str) -> dict[str, Any]:
    """Run one part of this file in a process of its own; what it answers is its last line."""
    ended = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=False)
    if ended.returncode:
        return {"failed": ended.stderr.strip().splitlines()[-1][:100] if ended.stderr else str(ended.returncode)}
    return dict(json.loads(ended.stdout.splitlines()[-1]))


def answer(method: str, *further: str) -> dict[str, Any]:
    """Do one part."""
    if method == "train":
        return trained(int(further[0]), further[1])
    if method.startswith("Tuner"):
        return found_by_tuner(method.rpartition(" ")[2])
    return found_by_memplan(["fp32"] if method.endswith("fp32") else None)


def main() -> None:
    """Print a table, one line for each way to find the batch."""
    print(f"{'':<18} {'batch':>6} {'precision':>11} {'trials':>7} {'search':>8} {'utilisation':>12} {'samples/s':>10}")
    for method in METHODS:
        started = time.perf_counter()
        found = in_process(method)
        search_s = time.perf_counter() - started
        if "failed" in found:
            print(f"{method:<18} failed after {search_s:.0f} s: {found['failed']}")
            continue
        real = in_process("train", str(found["batch_size"]), found["precision"])
        line = f"{method:<18} {found['batch_size']:>6} {found['precision']:>11} {found['trials']:>7} {search_s:>7.0f}s"
        if "failed" in real:
            print(f"{line} the training failed: {real['failed']}")
            continue
        print(f"{line} {real['peak_bytes'] / BUDGET_BYTES:>11.0%} {real['samples_per_s']:>11.1f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(answer(*sys.argv[1:])))
    else:
        main()
