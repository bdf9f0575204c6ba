"""Models of timm and transformers as workloads, built from their configuration with random weights."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import cloudpickle
import torch
from torch import nn

from memplan.devices.cards import find_card
from memplan.estimators.recorder.workload_trace import trace_workload
from memplan.estimators.tracing import SeenCardError, TracedSetting, TraceRequest
from memplan.recipe import Recipe
from memplan.workload import PickledWorkload, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.estimators import StepTrace

CARD = find_card("a100-80gb")


def timm_workload(name: str) -> Workload:
    """Classify images of the model's default size with AdamW."""
    import timm

    side = (timm.get_pretrained_cfg(name, allow_unregistered=True) or timm.models.PretrainedCfg()).input_size

    def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(size, *side), torch.zeros(size, dtype=torch.long)

    def loss(model: nn.Module, inputs: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        outputs = model(inputs[0])
        scores = outputs if isinstance(outputs, list | tuple) else [outputs]  # distilled models have two heads
        return sum(nn.functional.cross_entropy(each, inputs[1]) for each in scores)  # type: ignore[return-value]

    return Workload(
        model=lambda: timm.create_model(name, pretrained=False),
        batch=batch,
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        name=name,
    )


def language_workload(make: Callable[[], nn.Module], tokens: int, name: str) -> Workload:
    """Predict tokens with AdamW; the model computes its own loss."""

    def batch(size: int) -> dict[str, torch.Tensor]:
        ids = torch.ones(size, tokens, dtype=torch.long)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}

    return Workload(
        model=make,
        batch=batch,
        loss=lambda model, inputs: model(**inputs).loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        name=name,
    )


def trace_here(workload: Workload, precision: str) -> StepTrace:
    """Trace a workload in this process, as memplan's tracing process does; once a process."""
    source = PickledWorkload(payload=cloudpickle.dumps(workload), fingerprint="", search_path=tuple(sys.path))
    recipe = Recipe(micro_batch_size=2, precision=precision)  # type: ignore[arg-type]  # it reads the word
    request = TraceRequest(source=source, setting=TracedSetting(recipe=recipe), device=CARD)
    try:
        return trace_workload(request)
    except SeenCardError:
        return trace_workload(dataclasses.replace(request, card_is_seen=False))


def from_settings(family: str, head: str, **settings: Any) -> nn.Module:
    """Build a transformer of a family with a head, such as Llama and ForCausalLM, from its settings."""
    import transformers

    config = getattr(transformers, f"{family}Config")(**settings)
    return getattr(transformers, f"{family}{head}")(config)
