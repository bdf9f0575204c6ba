"""Compare what a training on batches of random lengths reserves with the replay of the same lengths.

    python benchmarks/varying_lengths.py --device cuda:0

Where there is no card, ``cuda_stubs/run.py`` runs it on PyTorch's own allocator. Lengths are drawn from one of two
distributions and padded to the longest of a batch; reserved and allocated memory are read after some of the steps.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
from typing import TYPE_CHECKING

import cloudpickle
import numpy as np
import numpy.typing as npt
import torch
import transformers
from forked import run_forked
from torch import nn

import memplan
from memplan.devices.resolving import resolve_device
from memplan.estimators import trace_step
from memplan.estimators.allocators.allocator_config import AllocatorConfig
from memplan.estimators.drawn_steps import events_on_batches
from memplan.recipe import Precision, Recipe
from memplan.units import MIB
from memplan.workload import PickledWorkload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from memplan.estimators.step_trace import DrawnBatches

SAMPLES, LONGEST, SEEDS, READ_AFTER, LIMIT_S = 2000, 1024, (1, 2), (10, 30, 100), 300.0
Lengths = npt.NDArray[np.int64]
DISTRIBUTIONS: dict[str, Callable[[np.random.Generator], Lengths]] = {
    "lognormal": lambda draw: np.clip(draw.lognormal(5.0, 0.6, SAMPLES), 8, LONGEST).astype(np.int64),
    "uniform": lambda draw: draw.integers(32, 513, SAMPLES),
}
CASES = (
    ("GPT-2", "lognormal", 8, Precision.FP32),
    ("GPT-2", "uniform", 32, Precision.BF16),
    ("Llama", "lognormal", 4, Precision.FP32),
    ("Llama", "uniform", 8, Precision.BF16),
    ("BERT", "lognormal", 16, Precision.FP32),
)


def make_model(name: str) -> nn.Module:
    """Return a language model of six to eight layers, 512 wide."""
    torch.manual_seed(0)
    if name == "GPT-2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=6, n_embd=512, n_head=8)).train()
    if name == "Llama":
        sizes = {"intermediate_size": 1376, "num_hidden_layers": 8, "num_key_value_heads": 4}
        config = transformers.LlamaConfig(hidden_size=512, num_attention_heads=8, **sizes)
        return transformers.LlamaForCausalLM(config).train()
    sizes = {"intermediate_size": 2048, "num_hidden_layers": 6, "max_position_embeddings": LONGEST}
    config = transformers.BertConfig(hidden_size=512, num_attention_heads=8, **sizes)
    return transformers.BertForMaskedLM(config).train()


def padded(lengths: list[int]) -> dict[str, torch.Tensor]:
    """Return a batch of texts, padded to the longest."""
    ids = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    return {"input_ids": ids, "labels": ids}


def loss_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the model's own loss."""
    return model(**batch).loss  # type: ignore[no-any-return]  # transformers' outputs are not typed


def make_optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return AdamW in PyTorch's default implementation."""
    return torch.optim.AdamW(parameters, lr=1e-4)


def drawn_lengths(lengths: Lengths, micro_batch_size: int, seed: int) -> Lengths:
    """Return the batches of as many steps as are read, each sample once an epoch; shape (steps, micro-batch)."""
    draw, wanted = np.random.default_rng(seed), READ_AFTER[-1] * micro_batch_size
    epochs = [draw.permutation(lengths) for _ in range(-(-wanted // len(lengths)))]
    return np.concatenate(epochs)[:wanted].reshape(-1, micro_batch_size)


def trained(name: str, batches: Lengths, precision: Precision, device: torch.device) -> list[tuple[int, int]]:
    """Train on the batches, and return reserved and allocated peaks so far after some steps, in bytes."""
    model = make_model(name).to(device)
    optimizer = make_optimizer(model.parameters())
    read = []
    for step, lengths in enumerate(batches.tolist(), 1):
        optimizer.zero_grad()
        batch = {key: value.to(device) for key, value in padded(lengths).items()}
        with torch.autocast(device.type, torch.bfloat16, enabled=precision is Precision.BF16):
            loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        if step in READ_AFTER:
            read.append((torch.cuda.max_memory_reserved(device), torch.cuda.max_memory_allocated(device)))
    return read


def traced(name: str, lengths: Lengths, recipe: Recipe, device: str) -> DrawnBatches:
    """Return how the blocks of a step follow its batch."""
    worst = memplan.worst_batch(lengths.tolist(), collate=padded, size=int)
    workload = memplan.Workload(
        model=functools.partial(make_model, name),
        batch=worst,
        loss=loss_of,
        optimizer=make_optimizer,
        typical_batch=worst.typical,
        sample_sizes=worst.sample_sizes,
    )
    source = PickledWorkload(payload=cloudpickle.dumps(workload), fingerprint="", search_path=())
    drawn = trace_step(source, recipe, resolve_device(device)).drawn
    if drawn is None:
        raise SystemExit(f"{name} makes other allocations for a typical batch than for the worst")
    return drawn


def replayed(drawn: DrawnBatches, batches: Lengths, longest: int) -> list[tuple[int, int]]:
    """Return the same as :func:`trained`, predicted."""
    shares = batches.max(axis=1) / longest
    config = AllocatorConfig.from_environment(os.environ, torch_version=torch.__version__)
    found = []
    for steps in READ_AFTER:
        peaks = events_on_batches(drawn, batches.shape[1], shares[:steps]).replayed(config)
        found.append((peaks.peak_reserved_bytes, peaks.peak_allocated_bytes))
    return found


def compared(case: tuple[str, str, int, Precision], seed: int, device: str) -> list[tuple[int, int, int, int]]:
    """Return reserved bytes, the same predicted, allocated bytes and these predicted, after each step that is read."""
    name, distribution, size, precision = case
    lengths = DISTRIBUTIONS[distribution](np.random.default_rng(0))
    batches = drawn_lengths(lengths, size, seed)
    measured = trained(name, batches, precision, torch.device(device))
    drawn = traced(name, lengths, Recipe(micro_batch_size=size, precision=precision), device)
    predicted = replayed(drawn, batches, int(lengths.max()))
    return [(now[0], then[0], now[1], then[1]) for now, then in zip(measured, predicted, strict=True)]


def main() -> None:
    """Print one row for every case, draw and step that is read; each training has a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args()
    print("| case | step | reserved MiB | predicted | error | allocated | predicted |\n|---|" + "---:|" * 6)
    for case, seed in itertools.product(CASES, SEEDS):
        ended = run_forked(compared, case, seed, options.device, limit_s=LIMIT_S)
        if ended.failure is not None:
            raise SystemExit(ended.failure)
        for step, (reserved, predicted, allocated, expected) in zip(READ_AFTER, ended.value, strict=True):
            cells = (reserved // MIB, predicted // MIB, f"{predicted / reserved - 1:+.1%}", allocated // MIB)
            print(f"| {', '.join(map(str, case))}, draw {seed}", step, *cells, f"{expected // MIB} |", sep=" | ")


if __name__ == "__main__":
    main()
