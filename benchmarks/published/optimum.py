"""A language model under the Hugging Face Trainer: a page of the optimum-benchmark data sets (huggingface.co).

``cuda_training_transformers_multiple-choice_FacebookAI/roberta-base`` on an AMD Instinct, torch 2.2 or 2.3 for ROCm:
random weights, fp32, AdamW and gradients clipped as the Trainer's defaults have it, two samples of one choice of 16
tokens. The caching allocator is the same; hipBLAS kept its workspaces outside of it until github.com/pytorch/pytorch
pull request 138791.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from detection_operators import define_detection_operators
from published.rows import Peak, Row

from memplan.recipe import Recipe
from memplan.units import MIB
from memplan.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

_TOKENS = 16
_MEASURED_BYTES = {Peak.ALLOCATED: 2_497_884_160, Peak.RESERVED: 2_707_423_232}
_AS_LARGE_AS_THE_INSTINCT = "a100-80gb"


def rows() -> Iterator[Row]:
    """Yield both peaks of the one run."""
    for peak, measured_bytes in _MEASURED_BYTES.items():
        yield Row(
            key=f"optimum-roberta-base-{peak}",
            family=f"optimum-{peak}",
            model="roberta-base multiple choice",
            workload=_multiple_choice,
            trace_key="optimum roberta-base",
            recipe=Recipe(micro_batch_size=2),
            device=_AS_LARGE_AS_THE_INSTINCT,
            peak=peak,
            measured_mib=measured_bytes / MIB,
            counts_blas_workspaces=False,
        )


def _multiple_choice() -> Workload:
    def batch(size: int) -> dict[str, torch.Tensor]:
        tokens = torch.zeros(size, 1, _TOKENS, dtype=torch.long)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens[:, 0, 0].clone()}

    def loss(model: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        return model(**inputs).loss

    return Workload(
        model=_roberta,
        batch=batch,
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=5e-5, weight_decay=0.0),
        grad_clip_norm=1.0,
    )


def _roberta() -> nn.Module:
    define_detection_operators()
    import transformers

    config = transformers.RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1)
    return transformers.RobertaForMultipleChoice(config)
