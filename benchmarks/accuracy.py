"""Predicted against published: rebuild the runs of the xMem study and compare reserved peaks.

    python benchmarks/accuracy.py ROWS.csv [--family cnn|transformer] [--limit N]

ROWS.csv holds the records of the study's artefact (github.com/Stone-ResearchLife/xMem, ``evaluation_result.json``)
with the columns ``family, model, optimizer, batch, zero_grad_mode, gpu, ground_mib, real_oom, xmem_error``. Ground
truth there is what NVML showed beyond the context, in torch 2.6: the reserved peak plus 14 to 18 MiB on these cards.

Needs torchvision and transformers. Rows that ran out of memory, that zero the gradients between forward and backward,
or whose optimizer is not torch's are left out. Nothing here is fitted to the rows.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import functools
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import torch
from torch import nn

from memplan.cards import DeviceSpec, find_card
from memplan.estimators import StepTrace, estimate, trace_step
from memplan.recipe import Recipe
from memplan.units import MIB
from memplan.workload import PickledWorkload, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

cloudpickle.register_pickle_by_value(sys.modules[__name__])

CARDS = {"NVIDIA GeForce RTX 3060": ("rtx-3060", 18), "NVIDIA GeForce RTX 4060": ("rtx-4060", 14)}  # MiB, see above
OPTIMIZERS = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad")
TOKENS = 128
IMAGE_SIDE = 86
TORCHVISION = {
    "VGG16": "vgg16",
    "VGG19": "vgg19",
    "ResNet101": "resnet101",
    "ResNet152": "resnet152",
    "MobileNetV2": "mobilenet_v2",
    "ConvNeXtTiny": "convnext_tiny",
    "ConvNeXtBase": "convnext_base",
    "RegNetX400MF": "regnet_x_400mf",
    "RegNetY400MF": "regnet_y_400mf",
    "MnasNet": "mnasnet1_0",
    "MobeNetV3Small": "mobilenet_v3_small",
    "MobeNetV3Large": "mobilenet_v3_large",
}
TEN_CLASSES = ("MnasNet", "MobeNetV3Small", "MobeNetV3Large")
_NO_DROPOUT = {"attention_dropout": 0.0, "embed_dropout": 0.0, "resid_dropout": 0.0}
TRANSFORMERS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "openai-community/gpt2": ("GPT2", {}, None),
    "distilbert/distilgpt2": ("GPT2", {"n_layer": 6}, None),
    "cerebras/Cerebras-GPT-111M": (
        "GPT2",
        {"n_layer": 10, "n_inner": 3072, "n_positions": 2048, "activation_function": "gelu"}
        | {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
        None,
    ),
    "EleutherAI/gpt-neo-125M": (
        "GPTNeo",
        {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "attention_types": [[["global", "local"], 6]]}
        | _NO_DROPOUT,
        "eager",
    ),
    "facebook/opt-125m": ("OPT", {}, None),
    "facebook/opt-350m": (
        "OPT",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "ffn_dim": 4096,
            "num_attention_heads": 16,
            "word_embed_proj_dim": 512,
            "do_layer_norm_before": False,
        },
        None,
    ),
    "T5-small": ("T5", {"decoder_start_token_id": 0}, "eager"),
    "t5-base": (
        "T5",
        {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "decoder_start_token_id": 0},
        "eager",
    ),
}


def image_model(name: str) -> nn.Module:
    """Build a torchvision classifier as the study did."""
    _define_detection_operators()
    import torchvision

    classes = 10 if name in TEN_CLASSES else 1000
    return torchvision.models.get_model(TORCHVISION[name], weights=None, num_classes=classes)


def _define_detection_operators() -> None:
    # torchvision built for CUDA does not load beside torch built for the CPU without them
    for name in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def language_model(name: str) -> nn.Module:
    """Build a transformer from its configuration, with random weights."""
    _define_detection_operators()
    import transformers

    family, settings, attention = TRANSFORMERS[name]
    config = getattr(transformers, f"{family}Config")(**settings)
    kind = transformers.AutoModelForSeq2SeqLM if family == "T5" else transformers.AutoModelForCausalLM
    return kind.from_config(config, attn_implementation=attention)


def image_workload(name: str, optimizer: Callable[..., Any]) -> Workload:
    """Classify CIFAR-10 images enlarged to 86 x 86."""
    return Workload(
        model=lambda: image_model(name),
        batch=lambda size: (torch.zeros(size, 3, IMAGE_SIDE, IMAGE_SIDE), torch.zeros(size, dtype=torch.long)),
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        optimizer=optimizer,
    )


def language_workload(name: str, optimizer: Callable[..., Any]) -> Workload:
    """Predict tokens; the loop keeps a step's outputs until the next step has its own."""
    kept: list[Any] = []

    def batch(size: int) -> dict[str, torch.Tensor]:
        tokens = torch.zeros(size, TOKENS, dtype=torch.long)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens.clone()}

    def loss(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        outputs = model(**inputs)
        kept[:] = [outputs]
        return outputs.loss

    return Workload(model=lambda: language_model(name), batch=batch, loss=loss, optimizer=optimizer)


@functools.cache
def traced(family: str, model: str, optimizer: str, device: DeviceSpec) -> StepTrace:
    """Trace a model and optimizer once for all its rows."""
    make = image_workload if family == "cnn" else language_workload
    workload = make(model, lambda parameters: getattr(torch.optim, optimizer)(parameters, lr=1e-3))
    source = PickledWorkload(payload=cloudpickle.dumps(workload), fingerprint=model, search_path=tuple(sys.path))
    return trace_step(source, Recipe(micro_batch_size=2), device)


def is_usable(row: dict[str, str], family: str | None) -> bool:
    """Whether a row ran, on a known card, with a model, optimizer and loop that are rebuilt here."""
    return (
        row["real_oom"] == "false"
        and row["optimizer"] in OPTIMIZERS
        and row["zero_grad_mode"] != "1"
        and row["gpu"] in CARDS
        and row["model"] in (*TORCHVISION, *TRANSFORMERS)
        and family in (None, row["family"])
    )


def signed_error(row: dict[str, str]) -> float:
    """Predict a row's reserved peak, print it, and return its relative error."""
    card, overhead_mib = CARDS[row["gpu"]]
    device = find_card(card)
    trace = traced(row["family"], row["model"], row["optimizer"], device)
    predicted = estimate(trace, micro_batch_size=int(row["batch"]), device=device).peak_reserved_bytes / MIB
    measured = int(row["ground_mib"]) - overhead_mib
    error = predicted / measured - 1
    print(
        f"{row['model'][:28]:28s} {row['optimizer']:8s} {card} batch {row['batch']:>4s}  measured {measured:6d} MiB"
        f"  predicted {predicted:7.0f} MiB  {error:+7.1%}  xMem {float(row['xmem_error'] or 'nan'):6.1%}",
        flush=True,
    )
    return error


def main() -> None:
    """Print every row, then the scores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--family", choices=("cnn", "transformer"))
    parser.add_argument("--limit", type=int)
    options = parser.parse_args()
    with options.rows.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if is_usable(row, options.family)][: options.limit]
    errors = [signed_error(row) for row in rows]
    sizes = sorted(abs(error) for error in errors)
    theirs = [float(row["xmem_error"]) for row in rows if row["xmem_error"]]
    under = sum(error < 0 for error in errors) / len(errors)
    print(
        f"{len(errors)} rows: median error {statistics.median(sizes):.1%}, 90th percentile "
        f"{sizes[int(0.9 * (len(sizes) - 1))]:.1%}, underestimates {under:.0%}; "
        f"xMem on the same rows: median {statistics.median(theirs):.1%}"
    )


if __name__ == "__main__":
    main()
