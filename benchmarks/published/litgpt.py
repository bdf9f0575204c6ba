"""Language models under low-rank updates of queries and values, as LitGPT fine-tunes them.

A100 of 40 GB, torch 2.1, weights in bfloat16, no checkpointing, head and loss in chunks of 128 tokens, the first batch
as long as the longest sample. Built with the ``litgpt`` package, whose layers are those of that time. Lightning's
Fabric hands on what a model returns in PyTorch's default type (``HalfPrecision.convert_output``), so that the loss is
computed in single precision.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from detection_operators import define_detection_operators
from published.rows import Peak, Row, table

from memplan.recipe import Recipe
from memplan.units import MIB
from memplan.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

_CHUNK_TOKENS = 128


def rows() -> Iterator[Row]:
    """Yield the rows that ran."""
    for cells in table("litgpt"):
        tokens, size = int(cells["tokens"]), int(cells["micro_batch"])
        yield Row(
            key=f"litgpt-{cells['name']}-{size}",
            family="litgpt",
            model=cells["model"],
            workload=functools.partial(_low_rank, cells["name"], tokens),
            trace_key=f"litgpt {cells['name']}",
            recipe=Recipe(micro_batch_size=size, precision="bf16-true"),
            device="a100-40gb",
            peak=Peak.ALLOCATED,
            measured_mib=float(cells["gb"]) * 1e9 / MIB,
        )


def _low_rank(name: str, tokens: int) -> Workload:
    def model() -> nn.Module:
        define_detection_operators()
        from litgpt.lora import GPT, Config, mark_only_lora_as_trainable

        updates = {"lora_r": 8, "lora_alpha": 16, "lora_dropout": 0.05, "lora_query": True, "lora_value": True}
        made = GPT(Config.from_name(name, **updates)).to(torch.bfloat16)
        mark_only_lora_as_trainable(made)
        return made

    def batch(size: int) -> dict[str, torch.Tensor]:
        words = torch.zeros(size, tokens, dtype=torch.long)
        return {"words": words, "labels": words.clone()}

    return Workload(model=model, batch=batch, loss=_chunked_loss, optimizer=_optimizer)


def _chunked_loss(model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    from litgpt.utils import chunked_cross_entropy

    logits = [each.float() for each in model(batch["words"], lm_head_chunk_size=_CHUNK_TOKENS)]
    logits[-1] = logits[-1][:, :-1]
    return chunked_cross_entropy(logits, batch["labels"][:, 1:])


def _optimizer(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(each for each in parameters if each.requires_grad)
