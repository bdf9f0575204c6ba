"""Workloads that end in every way a trial can end; imported by the children of test_outcomes.py."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.utils.rnn import pad_sequence

from memplan import Workload, worst_batch

if TYPE_CHECKING:
    from collections.abc import Callable

KIB, MIB = 1 << 10, 1 << 20


def workload(in_loss: Any = None, **changes: Any) -> Workload:
    """512x512 weights (1 MiB) trained with Adam on rows of 512 numbers (2 KiB); ``in_loss`` runs inside the loss."""

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        found = in_loss() if in_loss is not None else None
        value = model(batch).square().mean()
        return value if found is None else value * found

    parts = {
        "model": lambda: torch.nn.Linear(512, 512, bias=False),
        "batch": lambda size: torch.ones(size, 512),
        "loss": loss,
        "optimizer": lambda parameters: torch.optim.Adam(parameters, lr=1e-4),
    }
    return Workload(**{**parts, **changes})


def fits(config: Any) -> Workload:
    return workload()


def chooses_a_card(config: Any) -> Workload:
    torch.set_default_device("cuda")
    return workload()


def keeps_outputs(config: Any) -> Workload:
    """Keep 8 KiB a sample from every step."""
    kept: list[torch.Tensor] = []
    return workload(lambda: kept.append(torch.ones(8, 4 * KIB)))


class Scaled(torch.nn.Module):
    """512x512 weights (1 MiB), each multiplied with a number of its own: no matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(512, 512))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.weight * batch.sum()


def multiplies_elementwise(config: Any) -> Workload:
    return workload(model=Scaled)


def needs_one_gib_at_once(config: Any) -> Workload:
    return workload(lambda: torch.ones(256 * MIB).mean())


def grows_by_16_mib_at_a_time(config: Any) -> Workload:
    kept: list[torch.Tensor] = []

    def grow() -> None:
        while True:
            kept.append(torch.ones(4 * MIB))
            time.sleep(0.02)

    return workload(grow)


def fills_python_memory(config: Any) -> Workload:
    return workload(lambda: [bytes(MIB) + bytes([n % 256]) for n in range(4096)] and None)


def fills_numpy_memory(config: Any) -> Workload:
    return workload(lambda: float(np.ones(256 * MIB, dtype=np.float32).mean()))


def grows_in_forked_processes(config: Any) -> Workload:
    code = "x = bytearray(600 << 20); import time; time.sleep(600)"
    return workload(lambda: time.sleep(600) if subprocess.Popen([sys.executable, "-c", code]) else None)


def raises(config: Any) -> Workload:
    def stumble() -> None:
        raise KeyError("the user's own mistake")

    return workload(stumble)


def raises_while_made(config: Any) -> Workload:
    raise ValueError("the config makes no sense")


def loss_of_every_sample(config: Any) -> Workload:
    return workload(loss=lambda model, batch: model(batch).square().mean(dim=1))


def batch_of_always_four(config: Any) -> Workload:
    return workload(batch=lambda size: torch.ones(4, 512))


def batch_of_at_most_thirty(config: Any) -> Workload:
    return workload(batch=lambda size: torch.ones(30, 512)[:size])


def not_a_number(config: Any) -> Workload:
    return workload(lambda: float("nan"))


def in_the_sixth_step(act: Callable[[], None]) -> Workload:
    """Act in the step that follows two warm-up and three timed steps: the attributing one."""
    numbers = itertools.count(1)
    return workload(lambda: act() if next(numbers) == 6 else None)


def raises_in_the_sixth_step(config: Any) -> Workload:
    def stumble() -> None:
        raise KeyError("sixth")

    return in_the_sixth_step(stumble)


def hangs_in_the_sixth_step(config: Any) -> Workload:
    return in_the_sixth_step(lambda: time.sleep(600))


def dies_in_the_sixth_step(config: Any) -> Workload:
    return in_the_sixth_step(lambda: os.kill(os.getpid(), signal.SIGKILL))


def wants_to_see_no_card(config: Any) -> Workload:
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    return workload()


def overflows_at_first(config: Any) -> Workload:
    """Gradients of about 7, which times the scaler's first 2**16 is beyond what half precision holds."""
    return workload(lambda: 1000.0)


def hangs(config: Any) -> Workload:
    def wait_for_a_lock_that_nobody_releases() -> None:
        time.sleep(600)

    return workload(wait_for_a_lock_that_nobody_releases)


def takes_a_third_of_a_second_a_step(config: Any) -> Workload:
    return workload(lambda: time.sleep(0.3))


def segfaults(config: Any) -> Workload:
    return workload(lambda: ctypes.string_at(0))


def calls_exit(config: Any) -> Workload:
    return workload(lambda: sys.exit(3))


def exits_at_once(config: Any) -> Workload:
    return workload(lambda: os._exit(3))


def kills_itself(config: Any) -> Workload:
    return workload(lambda: os.kill(os.getpid(), signal.SIGKILL))


def prints_a_lot_and_leaves_processes(config: Any) -> Workload:
    def misbehave() -> None:
        sys.stdout.write("z" * (10 * MIB))
        if not os.fork():
            time.sleep(600)

    return workload(misbehave)


def takes_long_to_build(config: Any) -> Workload:
    def build_slowly() -> torch.nn.Module:
        time.sleep(2)
        return torch.nn.Linear(512, 512, bias=False)

    return workload(model=build_slowly)


def compiles_slowly(config: Any) -> Workload:
    def compile_graph(graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> Callable[..., Any]:
        time.sleep(2)
        return graph.forward

    return workload(model=lambda: torch.compile(torch.nn.Linear(512, 512, bias=False), backend=compile_graph))


def reads_with_forked_loaders(config: Any) -> Workload:
    """Every step leaves an iterator behind whose workers wait for more to read."""
    kept = []

    def read() -> None:
        loader = torch.utils.data.DataLoader(torch.ones(64, 4), num_workers=2, multiprocessing_context="fork")
        kept.append(iter(loader))
        next(kept[-1])

    return workload(read)


class SlowRows(torch.utils.data.Dataset):  # type: ignore[type-arg]  # cannot be subscripted
    """256 rows of 512 numbers, each made after ``wait``."""

    def __init__(self, wait: Callable[[], Any]) -> None:
        self._wait = wait

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> torch.Tensor:
        self._wait()
        return torch.ones(512)


def _loaded(wait: Callable[[], Any], *, workers: int) -> Workload:
    return workload(
        loader=lambda size: torch.utils.data.DataLoader(SlowRows(wait), batch_size=size, num_workers=workers)
    )


def loads_at_100_a_second(config: Any) -> Workload:
    return _loaded(lambda: time.sleep(0.01), workers=0)


def loads_at_100_a_second_twice(config: Any) -> Workload:
    return _loaded(lambda: time.sleep(0.01), workers=2)


def fails_to_load(config: Any) -> Workload:
    def fail() -> None:
        raise FileNotFoundError("no samples.bin")

    return _loaded(fail, workers=2)


def ends_the_process_while_it_loads(config: Any) -> Workload:
    return _loaded(lambda: os._exit(3), workers=0)


def hangs_while_it_loads(config: Any) -> Workload:
    return _loaded(lambda: time.sleep(60), workers=1)


def hangs_and_ignores_signals(config: Any) -> Workload:
    def wait() -> None:
        for polite in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(polite, signal.SIG_IGN)
        time.sleep(600)

    return workload(wait)


def floods(config: Any) -> Workload:
    """100 MiB a step."""

    def print_much() -> None:
        for _ in range(100):
            sys.stdout.write("z" * MIB)
        sys.stdout.write("\nthe end\n")

    return workload(print_much)


def slow_in_every_step(config: Any) -> Workload:
    return workload(lambda: time.sleep(0.1))


class Rows:
    """Samples of so many rows of 256 numbers, 1 KiB a row."""

    def __init__(self, counts: list[int]) -> None:
        self.counts = counts

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(1, 256).expand(self.counts[index], 256)


def of_rows(counts: list[int]) -> Workload:
    batches = worst_batch(Rows(counts), collate=lambda rows: pad_sequence(rows, batch_first=True), size=len)
    return workload(
        model=lambda: torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)),
        batch=batches,
        typical_batch=batches.typical,
    )


def ragged(config: Any) -> Workload:
    return of_rows([1024] * 8 + [256] * 32)


def evaluates(config: Any) -> Workload:
    """Evaluates 16 MiB at once, and returns as much."""
    return workload(
        model=lambda: torch.nn.Linear(256, 256, bias=False),
        batch=lambda size: torch.ones(size, 256),
        evaluate=lambda model, batch: model(batch),
        evaluation_batch=lambda size: torch.ones(16384, 256),
    )


def sharded(config: Any) -> Workload:
    return workload(shard=lambda model, recipe: fully_shard(model))


def wrapped_by_the_first_fsdp(config: Any) -> Workload:
    return workload(shard=lambda model, recipe: FullyShardedDataParallel(model, use_orig_params=True))


def evaluates_beyond_the_budget(config: Any) -> Workload:
    return replace(evaluates(config), evaluation_batch=lambda size: torch.ones(1 << 20, 256))


def fails_to_evaluate(config: Any) -> Workload:
    return replace(evaluates(config), evaluate=lambda model, batch: model.no_such_layer)


def alike(config: Any) -> Workload:
    return of_rows([256] * 8)


def ragged_with_an_outlier(config: Any) -> Workload:
    return of_rows([1024] * 8 + [256] * 32 + [102_400])


def needs_two_gib_on_the_device(config: Any) -> Workload:
    """Two blocks of 1 GiB at once."""

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        first = torch.ones(256 * MIB, device=batch.device)
        return model(batch).square().mean() * (first + first).mean()

    return workload(loss=loss)


def fills_the_device(config: Any) -> Workload:
    """As many blocks of 1 GiB at once as the config says."""

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        held = [torch.empty(1 << 30, dtype=torch.uint8, device=batch.device) for _ in range(config.gib)]
        return model(batch).square().mean() * len(held)

    return workload(loss=loss)


def indexes_out_of_range(config: Any) -> Workload:
    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        beyond = torch.full((8,), 10_000, device=batch.device)
        return model(batch)[beyond].mean()

    return workload(loss=loss)


def takes_more_in_the_second_step(config: Any) -> Workload:
    """A block of 200 MiB in the second step alone, as where state is made late."""
    numbers = itertools.count(1)
    return workload(lambda: torch.ones(50 * MIB).mean() if next(numbers) == 2 else None)


def grows_in_a_small_group(config: Any) -> Workload:
    """1 GiB in a control group that has less, far below memplan's own limit."""

    def grow() -> torch.Tensor:
        Path(os.environ["MEMPLAN_TEST_GROUP"], "cgroup.procs").write_text(str(os.getpid()))
        return torch.ones(256 * MIB).mean()

    return workload(grow)
