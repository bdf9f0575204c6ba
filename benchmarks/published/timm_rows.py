"""timm classifiers: process peaks of the GPUMemNet study, and the largest batches of timm's own training benchmark.

GPUMemNet (github.com/itu-rad/GPUMemNet, ``fake_tensor.xlsx``): timm's training script on ImageNet, fp32 with TF32 in
convolutions, one A100 of 40 GB, what nvidia-smi showed; torch of 2024. The context is not told. The script's loader
normalises the next batch on the card, in a stream of its own, while one is trained on and the loop still names the one
before (``timm/data/loader.py``): two more in single precision and one in bytes, whose memory nothing else may take.

timm benchmark (github.com/huggingface/pytorch-image-models, ``benchmark-train-amp-*-pt112-cu113-rtx3090.csv``): fp16 by
autocast without a scaler, SGD with momentum, gradients filled with zeros and attention that keeps its probabilities
(torch 1.12, timm 0.6), cuDNN's benchmark mode, 24 GB: the first size of a falling ladder that ran, and the one above
it, which did not.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
import truth_models
from detection_operators import define_detection_operators
from published.rows import Peak, Row, in_benchmark_mode, table

from memplan.recipe import Recipe
from memplan.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn


def study_rows() -> Iterator[Row]:
    """Yield GPUMemNet's runs."""
    for cells in table("gpumemnet"):
        name = cells["model"]
        for size in (8, 16, 32, 64, 128):
            yield Row(
                key=f"gpumemnet-{name}-{size}",
                family="gpumemnet",
                model=name,
                workload=functools.partial(classifier, name, prefetches=True),
                trace_key=f"gpumemnet {name}",
                recipe=Recipe(micro_batch_size=size, precision="tf32"),
                device="a100-40gb",
                peak=Peak.PROCESS,
                measured_mib=float(cells[f"mib_b{size}"]),
            )


def benchmark_rows() -> Iterator[Row]:
    """Yield the sizes that ran and failed, for both memory formats."""
    for cells in table("timm_intervals"):
        for layout in ("nchw", "nhwc"):
            ran, failed = cells[layout].split("..")
            name, side = cells["model"], int(cells["img"])
            channels_last = layout == "nhwc"
            yield Row(
                key=f"timm-{layout}-{name}",
                family="timm-interval",
                model=f"{name} {layout}",
                workload=functools.partial(classifier, name, side, channels_last=channels_last, is_of_2022=True),
                trace_key=f"timm {name} {layout}",
                recipe=Recipe(micro_batch_size=int(ran), precision="fp16"),
                device="rtx-3090",
                peak=Peak.PROCESS,
                counts_blas_workspaces=False,
                measured_mib=None,
                failed_micro_batch_size=None if failed == "cap" else int(failed),
            )


def classifier(
    name: str, side: int = 224, *, channels_last: bool = False, is_of_2022: bool = False, prefetches: bool = False
) -> Workload:
    """Classify images with a timm model and SGD with momentum, in cuDNN's benchmark mode, as timm's scripts do."""
    parts = truth_models.timm_classifier(name, side)
    prefetched: list[torch.Tensor] = []

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        if prefetches and (not prefetched or prefetched[0].shape != batch[0].shape):
            kinds = (torch.float32, torch.float32, torch.uint8)
            prefetched[:] = [torch.empty_like(batch[0], dtype=kind) for kind in kinds]
        return parts.loss(model, batch)

    model = functools.partial(_without_fused_attention, parts.model) if is_of_2022 else parts.model
    return Workload(
        model=functools.partial(in_benchmark_mode, model),
        batch=parts.batch,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, nesterov=True),
        channels_last=channels_last,
        zero_grad_set_to_none=not is_of_2022,
    )


def _without_fused_attention(model: Callable[[], nn.Module]) -> nn.Module:
    define_detection_operators()
    import timm

    timm.layers.set_fused_attn(False)
    return model()
