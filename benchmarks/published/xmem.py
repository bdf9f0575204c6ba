"""Runs of the xMem study (github.com/Stone-ResearchLife/xMem, ``evaluation_result.json``), torch 2.6 on three cards.

What NVML showed beyond the first sample, which holds the context: the reserved peak plus 14 to 26 MiB, and on A100 plus
354 MiB. The first sample may already hold some of a CNN's weights, by up to which such a figure is too small. Language
models were built by transformers of May 2025: use 4.51, whose attention and loss allocate differently from today's.

The loop: TF32 in convolutions but not in matrix products, as torch's defaults are; batches padded to 128 tokens, with
a mask; the outputs of a step live until the next has its own; ``zero_grad`` before the forward pass, or (mode 1)
after it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from detection_operators import define_detection_operators
from published.rows import Peak, Row, number, table
from torch import nn

from memplan.recipe import Recipe
from memplan.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

CARDS = {
    "NVIDIA GeForce RTX 3060": ("rtx-3060", 18),
    "NVIDIA GeForce RTX 4060": ("rtx-4060", 14),
    "NVIDIA A100-SXM4-40GB": ("a100-40gb", 354),
}  # MiB beyond the reserved peak
RIVALS = {"xMem": "xmem_error", "DNNMem": "dnnmem_error", "SchedTune": "schedtune_error", "LLMem": "llmem_error"}
OPTIMIZERS = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adafactor")
TOKENS = 128
IMAGE_SIDE = 86
TORCHVISION = {
    "VGG16": "vgg16", "VGG19": "vgg19", "ResNet101": "resnet101", "ResNet152": "resnet152",
    "MobileNetV2": "mobilenet_v2", "ConvNeXtTiny": "convnext_tiny", "ConvNeXtBase": "convnext_base",
    "RegNetX400MF": "regnet_x_400mf", "RegNetY400MF": "regnet_y_400mf", "MnasNet": "mnasnet1_0",
    "MobeNetV3Small": "mobilenet_v3_small", "MobeNetV3Large": "mobilenet_v3_large",
}  # fmt: skip
TEN_CLASSES = ("MnasNet", "MobeNetV3Small", "MobeNetV3Large")
_NO_DROPOUT = {"attention_dropout": 0.0, "embed_dropout": 0.0, "resid_dropout": 0.0}
_T5_BASE = {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
# Settings of the configurations that the Hub holds under these names.
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
        {"hidden_size": 1024, "num_hidden_layers": 24, "ffn_dim": 4096, "num_attention_heads": 16}
        | {"word_embed_proj_dim": 512, "do_layer_norm_before": False},
        None,
    ),
    "T5-small": ("T5", {"decoder_start_token_id": 0}, "eager"),
    "t5-base": ("T5", {"decoder_start_token_id": 0, **_T5_BASE}, "eager"),
    "Qwen/Qwen3-4B": (
        "Qwen3",
        {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32}
        | {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True},
        None,
    ),
    "google/gemma-2-2b-it": (
        "Gemma2",
        {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8}
        | {"num_key_value_heads": 4, "head_dim": 256, "vocab_size": 256000},
        None,
    ),
    "meta-llama/Llama-3.2-3B-Instruct": (
        "Llama",
        {"hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24}
        | {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "tie_word_embeddings": True},
        None,
    ),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": (
        "Qwen2",
        {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12}
        | {"num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": False},
        None,
    ),
}


def rows() -> Iterator[Row]:
    """Yield the runs that are rebuilt: all but those whose optimizer class or sequence length is not known."""
    for cells in table("xmem"):
        if cells["optimizer"] in OPTIMIZERS and cells["model"] in (*TORCHVISION, *TRANSFORMERS):
            yield _row(cells)


def _row(cells: dict[str, str]) -> Row:
    card, beyond_mib = CARDS[cells["gpu"]]
    name, optimizer, late = cells["model"], cells["optimizer"], cells["zero_grad_mode"] == "1"
    is_image = name in TORCHVISION
    make = functools.partial(image_workload if is_image else language_workload, name, optimizer)
    return Row(
        key=f"xmem-{cells['id']}",
        family={"cnn": "xmem-cnn", "transformer": "xmem-transformer", "llm_large": "xmem-large"}[cells["family"]],
        model=f"{name.split('/')[-1]} {optimizer}{' late zero_grad' if late else ''}",
        workload=functools.partial(make, zero_grad_before_backward=late),
        trace_key=f"xmem {name} {optimizer} {card} {late}",
        # Convolutions may use TF32; matrix products do not, which makes no difference to what they allocate.
        recipe=Recipe(micro_batch_size=int(cells["batch"]), precision="tf32"),
        device=card,
        peak=Peak.RESERVED,
        measured_mib=float(cells["ground_mib"]),
        beyond_peak_mib=beyond_mib,
        ran_out=cells["real_oom"] == "true",
        smallest_fit_mib=number(cells["smallest_cap_that_fit_mib"]),
        largest_failure_mib=number(cells["largest_cap_that_oomed_mib"]),
        rivals={rival: float(cells[column]) for rival, column in RIVALS.items() if cells[column]},
    )


def image_workload(name: str, optimizer: str, *, zero_grad_before_backward: bool) -> Workload:
    """Classify CIFAR-10 images enlarged to 86 x 86; the logits live until the next step has its own."""
    kept: list[Any] = []

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        outputs = model(batch[0])
        kept[:] = [outputs]
        return nn.functional.cross_entropy(outputs, batch[1])

    return Workload(
        model=functools.partial(image_model, name),
        batch=lambda size: (torch.zeros(size, 3, IMAGE_SIDE, IMAGE_SIDE), torch.zeros(size, dtype=torch.long)),
        loss=loss,
        optimizer=lambda parameters: getattr(torch.optim, optimizer)(parameters, lr=1e-3),
        zero_grad_before_backward=zero_grad_before_backward,
    )


def image_model(name: str) -> nn.Module:
    """Build a torchvision classifier as the study did."""
    define_detection_operators()
    import torchvision

    classes = 10 if name in TEN_CLASSES else 1000
    return torchvision.models.get_model(TORCHVISION[name], weights=None, num_classes=classes)


def language_workload(name: str, optimizer: str, *, zero_grad_before_backward: bool) -> Workload:
    """Predict tokens of padded batches; the outputs live until the next step has its own."""
    kept: list[Any] = []

    def batch(size: int) -> dict[str, torch.Tensor]:
        tokens = torch.zeros(size, TOKENS, dtype=torch.long)
        mask = torch.ones_like(tokens)
        if size > 1:
            mask[0, -1] = 0  # lines of a batch differ in length
        return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.clone()}

    def loss(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        outputs = model(**inputs)
        kept[:] = [outputs]
        return outputs.loss

    return Workload(
        model=functools.partial(language_model, name),
        batch=batch,
        loss=loss,
        optimizer=lambda parameters: getattr(torch.optim, optimizer)(parameters, lr=1e-3),
        zero_grad_before_backward=zero_grad_before_backward,
    )


def language_model(name: str) -> nn.Module:
    """Build a transformer from its configuration, with random weights."""
    define_detection_operators()
    import transformers

    family, settings, attention = TRANSFORMERS[name]
    config = getattr(transformers, f"{family}Config")(**settings)
    kind = transformers.AutoModelForSeq2SeqLM if family == "T5" else transformers.AutoModelForCausalLM
    return kind.from_config(config, attn_implementation=attention)
