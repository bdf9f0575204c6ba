"""Compare what DeepSpeed's engine allocates and reserves in steps on a card with what is predicted.

    python benchmarks/deepspeed_steps.py --device cuda:0

Where there is no card, ``cuda_stubs/run.py`` runs it on PyTorch's own allocator. One of the replicas runs, in PyTorch's
fake process group; the loop is that of DeepSpeed's documentation. Needs deepspeed and transformers.
"""

from __future__ import annotations

import argparse
import functools
import os
from dataclasses import dataclass, field
from typing import Any

import torch
from cuda_stubs.values import STUBS_VARIABLE, answer_that_norms_are_valid, answer_whether_masks_hide
from forked import run_forked
from torch import nn
from torch.testing._internal.distributed import fake_pg
from varying_lengths import loss_of, make_model, make_optimizer

import memplan
from memplan.recipe import Precision, Recipe
from memplan.units import MIB

TOKENS, STEPS, LIMIT_S = 256, 4, 300.0
HALF = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}
SMALL = {"reduce_bucket_size": 1_000_000, "allgather_bucket_size": 1_000_000}
SHARDED = {**SMALL, "stage3_prefetch_bucket_size": 500_000, "stage3_param_persistence_threshold": 10_000}
HOST = {"device": "cpu"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A training under DeepSpeed: eight samples of 256 tokens in each pass of one of four replicas."""

    net: str
    stage: int
    precision: Precision = Precision.BF16
    passes: int = 1
    checkpoints: bool = False
    zero: dict[str, Any] = field(default_factory=lambda: SMALL)
    zero_init: bool = True
    says: str = ""

    def __str__(self) -> str:
        told = (f"stage {self.stage}", str(self.precision), f"{self.passes} passes" if self.passes > 1 else "")
        return ", ".join(filter(None, (self.net, *told, "checkpointed" if self.checkpoints else "", self.says)))


CASES = (
    Case(net="GPT-2", stage=0),
    Case(net="GPT-2", stage=1, precision=Precision.FP32, passes=2),
    Case(net="GPT-2", stage=1, zero={}, says="default buckets"),
    Case(net="GPT-2", stage=2, precision=Precision.FP16, passes=2),
    Case(net="GPT-2", stage=2, zero={**SMALL, "overlap_comm": True}, says="overlapping"),
    Case(net="GPT-2", stage=2, zero={**SMALL, "offload_optimizer": HOST}, says="states on the host"),
    Case(net="GPT-2", stage=3, zero=SHARDED),
    Case(
        net="GPT-2", stage=3, zero={**SHARDED, "offload_optimizer": HOST, "offload_param": HOST}, says="all on the host"
    ),
    Case(net="GPT-2", stage=3, precision=Precision.FP32, zero=SHARDED, zero_init=False, says="sharded by initialize"),
    Case(net="Llama", stage=1),
    Case(net="Llama", stage=2, precision=Precision.FP32),
    Case(net="Llama", stage=3, zero=SHARDED, passes=2),
    Case(net="Llama", stage=3, zero=SHARDED, precision=Precision.FP16, checkpoints=True),
    Case(net="Llama", stage=3, zero={}, says="default buckets"),
    Case(net="Llama", stage=3, zero=SHARDED, zero_init=False, says="sharded by initialize"),
    Case(net="BERT", stage=2, precision=Precision.FP16),
    Case(net="BERT", stage=3, zero=SHARDED),
)
SAMPLES, REPLICAS, CLIP = 8, 4, 1.0


def made(case: Case) -> nn.Module:
    """Return the model of a case."""
    model = make_model(case.net)
    if case.checkpoints:
        model.gradient_checkpointing_enable()  # type: ignore[operator]  # of transformers' models
    return model


def batch_of(samples: int) -> dict[str, torch.Tensor]:
    """Return so many texts."""
    ids = torch.ones(samples, TOKENS, dtype=torch.long)
    return {"input_ids": ids, "labels": ids}


def trained(case: Case, device: torch.device) -> tuple[int, int]:
    """Train, and return allocated and reserved peaks in bytes, all that comes before the first step included."""
    import deepspeed  # which would use the card in the process that forks

    torch.distributed.init_process_group("fake", store=fake_pg.FakeStore(), rank=0, world_size=REPLICAS)
    model = made(case)
    if STUBS_VARIABLE in os.environ:
        answer_whether_masks_hide(hides=False, device=device.type)
        answer_that_norms_are_valid()
    config = {
        "train_micro_batch_size_per_gpu": SAMPLES,
        "gradient_accumulation_steps": case.passes,
        "gradient_clipping": CLIP,
        "zero_optimization": {"stage": case.stage, **case.zero},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        **{name: {"enabled": case.precision == name} for name in HALF},
    }
    if case.stage == 3 and case.zero_init:  # as under ``zero.Init``, in which models of transformers are loaded
        for each in model.parameters():
            each.data = each.data.to(HALF.get(case.precision, torch.float32))
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                module._buffers[name] = buffer.to(device)
        deepspeed.zero.Init(module=model, config_dict_or_path=config)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=make_optimizer(model.parameters()), config=config, dist_init_required=False
    )
    batch: dict[str, torch.Tensor] | None
    for _ in range(STEPS * case.passes):
        batch = None
        batch = {name: value.to(device) for name, value in batch_of(SAMPLES).items()}
        engine.backward(loss_of(engine, batch))
        engine.step()
    return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)


def predicted(case: Case, device: str) -> tuple[int, int]:
    """Return the same as :func:`trained`, predicted."""
    workload = memplan.Workload(
        model=functools.partial(made, case),
        batch=batch_of,
        loss=loss_of,
        optimizer=make_optimizer,
        grad_clip_norm=CLIP,
        deepspeed={"zero_optimization": {"stage": case.stage, **case.zero}},
        zero_init=case.zero_init,
    )
    recipe = Recipe(
        micro_batch_size=SAMPLES, accumulation_steps=case.passes, precision=case.precision, world_size=REPLICAS
    )
    found = memplan.estimate(workload, recipe=recipe, device=device)
    return found.peak_allocated_bytes, found.peak_reserved_bytes


def main() -> None:
    """Print one row for every case; each training has a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args()
    os.environ.setdefault("LOCAL_RANK", "0")
    os.environ.setdefault("RANK", "0")
    print("| net, DeepSpeed | allocated MiB | predicted | reserved | predicted |\n|---|" + "---:|" * 4)
    for case in CASES:
        ended = run_forked(trained, case, torch.device(options.device), limit_s=LIMIT_S)
        if ended.failure is not None:
            raise SystemExit(ended.failure)
        pairs = zip(ended.value, predicted(case, options.device), strict=True)
        cells = [f"{now / MIB:,.0f} | {then / MIB:,.0f} ({then / now - 1:+.1%})" for now, then in pairs]
        print(f"| {case} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
