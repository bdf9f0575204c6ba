"""The matrix of training steps whose memory is recorded on real cards."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import truth_models as models

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import nn

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One training step, fully described.

    Args:
        model: key of :data:`MODELS`.
        micro_batch_size: samples of one forward pass.
        precision: ``fp32``, ``tf32``, ``fp16``, ``bf16`` (autocast) or ``bf16-true``.
        optimizer: key of :data:`OPTIMIZERS`.
        accumulation_steps: forward and backward passes of one optimizer step.
        activation_checkpointing: whether the model's own switch is on.
        trained: ``all``, ``head`` (frozen backbone) or ``low-rank`` (frozen, with low-rank updates).
        cudnn_benchmark: whether cuDNN measures its algorithms instead of choosing by heuristics.
        channels_last: whether the model and its images use that memory format.
        replicas: over how many FSDP shards the model, of which one runs; 1 leaves it whole.
        compiled: whether ``torch.compile`` makes the model's kernels.
        cuda_graphs: whether what it compiles is recorded as CUDA graphs.
        grad_clip_norm: largest gradient norm; None where gradients are not clipped.
        cap_bytes: what the allocator may hold; None for the whole card.
        allocator_settings: ``PYTORCH_CUDA_ALLOC_CONF``; None for the defaults.
        keeps_history: whether every event of the allocator is recorded.
    """

    model: str
    micro_batch_size: int
    precision: str = "fp32"
    optimizer: str = "adamw"
    accumulation_steps: int = 1
    activation_checkpointing: bool = False
    trained: str = "all"
    cudnn_benchmark: bool = False
    channels_last: bool = False
    replicas: int = 1
    compiled: bool = False
    cuda_graphs: bool = False
    grad_clip_norm: float | None = None
    cap_bytes: int | None = None
    allocator_settings: str | None = None
    keeps_history: bool = False

    @property
    def key(self) -> str:
        """Short name that stays the same as long as the case does."""
        described = repr(self)
        for default in (
            "replicas=1",
            "compiled=False",
            "cuda_graphs=False",
        ):  # records name cases from before there were others
            described = described.replace(f", {default},", ",")
        digest = hashlib.sha256(described.encode()).hexdigest()[:8]
        compiled = ("-compiled" if self.compiled else "") + ("-graphs" if self.cuda_graphs else "")
        return f"{self.model}-{self.precision}-{self.optimizer}{compiled}-b{self.micro_batch_size}-{digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A model of the matrix and the two micro-batch sizes it is recorded at."""

    make: Callable[[], models.Trainable]
    sizes: tuple[int, int]
    is_convolutional: bool = False


def _image(name: str, sizes: tuple[int, int], side: int = 224, **settings: Any) -> Entry:
    return Entry(make=lambda: models.timm_classifier(name, side, **settings), sizes=sizes)


def _convolutional(name: str, sizes: tuple[int, int]) -> Entry:
    return Entry(make=lambda: models.timm_classifier(name), sizes=sizes, is_convolutional=True)


def _causal(family: str, sizes: tuple[int, int], tokens: int, attention: str | None = None, **settings: Any) -> Entry:
    return Entry(make=lambda: models.causal_language_model(family, tokens, attention, **settings), sizes=sizes)


def _masked(family: str, sizes: tuple[int, int], tokens: int, attention: str | None = None, **settings: Any) -> Entry:
    return Entry(make=lambda: models.padded_language_model(family, tokens, attention, **settings), sizes=sizes)


_SMALL_LLAMA: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "vocab_size": 32_000,
}
_WIDE_LLAMA: dict[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32_000,
}

MODELS: dict[str, Entry] = {
    "resnet18": _convolutional("resnet18", (64, 256)),
    "resnet50": _convolutional("resnet50", (32, 128)),
    "resnext50": _convolutional("resnext50_32x4d", (32, 128)),
    "vgg16": _convolutional("vgg16", (16, 64)),
    "densenet121": _convolutional("densenet121", (32, 64)),
    "efficientnet-b0": _convolutional("efficientnet_b0", (64, 128)),
    "mobilenetv3": _convolutional("mobilenetv3_large_100", (64, 256)),
    "regnety-032": _convolutional("regnety_032", (32, 128)),
    "convnext-tiny": _convolutional("convnext_tiny", (32, 128)),
    "hrnet-w18": _convolutional("hrnet_w18", (32, 64)),
    "vit-small": _image("vit_small_patch16_224", (64, 256)),
    "vit-base": _image("vit_base_patch16_224", (32, 128)),
    "beit-base": _image("beit_base_patch16_224", (32, 64)),
    "swin-tiny": _image("swin_tiny_patch4_window7_224", (32, 128)),
    "mixer-base": _image("mixer_b16_224", (32, 128)),
    "pvt-b2": _image("pvt_v2_b2", (32, 64)),
    "maxvit-tiny": _image("maxvit_tiny_tf_224", (16, 32)),
    "deeplabv3-resnet50": Entry(
        make=lambda: models.torchvision_segmenter("deeplabv3_resnet50"), sizes=(8, 32), is_convolutional=True
    ),
    "fcn-resnet50": Entry(
        make=lambda: models.torchvision_segmenter("fcn_resnet50"), sizes=(8, 32), is_convolutional=True
    ),
    "unet": Entry(make=models.unet_segmenter, sizes=(8, 64), is_convolutional=True),
    "diffusion-unet": Entry(make=models.denoiser, sizes=(32, 128), is_convolutional=True),
    "bert-base": _masked("Bert", (16, 64), 256),
    "roberta-base": _masked("Roberta", (16, 64), 256),
    "distilbert": _masked("DistilBert", (32, 64), 256),
    "deberta-small": _masked(
        "DebertaV2", (8, 16), 256, hidden_size=768, num_hidden_layers=6, num_attention_heads=12, intermediate_size=3072
    ),
    "bert-base-eager": _masked("Bert", (16, 32), 256, "eager"),
    "gpt2": _causal("GPT2", (8, 16), 512),
    "gpt2-eager": _causal("GPT2", (4, 8), 512, "eager"),
    "gpt-neo-125m": _causal(
        "GPTNeo", (8, 16), 256, hidden_size=768, num_layers=12, num_heads=12, attention_types=[[["global", "local"], 6]]
    ),
    "opt-125m": _causal("OPT", (8, 32), 256),
    "llama-160m": _causal("Llama", (8, 32), 512, **_SMALL_LLAMA),
    "llama-1b": _causal("Llama", (2, 8), 1024, **_WIDE_LLAMA),
    "qwen2-500m": _causal(
        "Qwen2",
        (4, 8),
        512,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        vocab_size=151_936,
    ),
    "mixtral-small": _causal(
        "Mixtral",
        (4, 8),
        256,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=32_000,
        num_local_experts=8,
    ),
    "t5-small": Entry(make=lambda: models.translation_model("T5", 128), sizes=(16, 64)),
    "t5-base": Entry(
        make=lambda: models.translation_model("T5", 128, d_model=768, d_ff=3072, num_layers=12, num_heads=12),
        sizes=(8, 32),
    ),
    "bart-base": Entry(
        make=lambda: models.translation_model(
            "Bart",
            128,
            d_model=768,
            encoder_layers=6,
            decoder_layers=6,
            encoder_attention_heads=12,
            decoder_attention_heads=12,
            encoder_ffn_dim=3072,
            decoder_ffn_dim=3072,
        ),
        sizes=(16, 64),
    ),
    "whisper-tiny": Entry(make=models.speech_model, sizes=(8, 16)),
    "lstm": Entry(make=lambda: models.recurrent_language_model("LSTM", 128), sizes=(32, 128)),
    "gru": Entry(make=lambda: models.recurrent_language_model("GRU", 128), sizes=(32, 128)),
}

OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
    "adamw-fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, fused=True),
    "adamw-single": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, foreach=False),
    "adafactor": lambda parameters: torch.optim.Adafactor(parameters, lr=1e-3),
}

_PRECISION_MODELS = (
    *("resnet50", "convnext-tiny", "vit-base", "swin-tiny", "unet", "diffusion-unet"),
    *("bert-base", "gpt2", "llama-160m", "t5-small", "mixtral-small"),
)
_OPTIMIZER_MODELS = ("resnet50", "vit-base", "gpt2")
_CHECKPOINTED = ("vit-base", "swin-tiny", "gpt2", "llama-1b", "t5-base", "bert-base")
_ACCUMULATED = ("resnet50", "vit-base", "gpt2", "unet")
_BENCHMARKED = ("resnet50", "vgg16", "unet", "deeplabv3-resnet50", "convnext-tiny")
_CHANNELS_LAST = ("resnet50", "efficientnet-b0", "unet")
_SHARDED = ("llama-160m", "gpt2", "vit-base", "bert-base")
_REPLICAS = 8
_COMPILED = (
    *("resnet18", "resnet50", "convnext-tiny", "mobilenetv3", "unet", "vit-small", "swin-tiny"),
    *("bert-base", "gpt2", "llama-160m", "t5-small"),
)
_IN_GRAPHS = ("resnet18", "convnext-tiny", "vit-small", "bert-base", "gpt2", "llama-160m")
_EXPANDABLE = ("resnet50", "gpt2", "swin-tiny", "unet")
_HISTORIES = {
    ("resnet50", "fp32"), ("resnet50", "bf16"), ("unet", "fp32"), ("vit-base", "fp32"), ("vit-base", "bf16"),
    ("gpt2", "fp32"), ("gpt2", "bf16"), ("t5-small", "fp32"), ("llama-160m", "bf16"), ("lstm", "fp32"),
    ("vgg16", "fp32"), ("mixtral-small", "bf16"),
}  # fmt: skip
_CAPS = {
    8 * GIB: (("resnet50", 96), ("resnet50", 64), ("gpt2", 8)),
    16 * GIB: (("resnet50", 160), ("vit-base", 96), ("unet", 128)),
    24 * GIB: (("resnet50", 256), ("vit-base", 160), ("gpt2", 24)),
    40 * GIB: (("resnet50", 448), ("vit-base", 256), ("gpt2", 48)),
    80 * GIB: (("vit-base", 512), ("gpt2", 96)),
}


def matrix() -> tuple[Case, ...]:
    """Return all cases, the ones with most to tell first, none twice."""
    return tuple(dict.fromkeys(_all_cases()))


def _all_cases() -> Iterator[Case]:
    for name, entry in MODELS.items():
        small, large = entry.sizes
        yield Case(model=name, micro_batch_size=small, keeps_history=(name, "fp32") in _HISTORIES)
        yield Case(model=name, micro_batch_size=large)
        yield Case(model=name, micro_batch_size=large, precision="bf16", keeps_history=(name, "bf16") in _HISTORIES)
    yield from _capped()
    for name in _PRECISION_MODELS:
        for precision in ("tf32", "fp16", "bf16-true"):
            yield Case(model=name, micro_batch_size=MODELS[name].sizes[0], precision=precision)
    for name in _OPTIMIZER_MODELS:
        for optimizer in OPTIMIZERS:
            yield Case(model=name, micro_batch_size=MODELS[name].sizes[0], optimizer=optimizer)
    yield from _variations()


def _capped() -> Iterator[Case]:
    for cap_bytes, runs in _CAPS.items():
        for name, size in runs:
            yield Case(model=name, micro_batch_size=size, cap_bytes=cap_bytes)


def _variations() -> Iterator[Case]:
    both = ("fp32", "bf16")
    yield from (_at(m, precision=p, activation_checkpointing=True) for m in _CHECKPOINTED for p in both)
    yield from (_at(m, precision=p, accumulation_steps=4) for m in _ACCUMULATED for p in both)
    yield from (_at(m, precision=p, cudnn_benchmark=True) for m in _BENCHMARKED for p in both)
    yield from (_at(m, trained="head") for m in ("resnet50", "vit-base"))
    yield from (_at(m, trained="low-rank") for m in ("llama-160m", "opt-125m", "bert-base"))
    yield from (_at(m, precision=p, channels_last=True) for m in _CHANNELS_LAST for p in ("fp32", "fp16"))
    yield from (_at(m, allocator_settings="expandable_segments:True") for m in _EXPANDABLE)
    yield from (_at(m, precision=p, replicas=_REPLICAS) for m in _SHARDED for p in both)
    yield _at("llama-1b", precision="bf16", replicas=_REPLICAS, activation_checkpointing=True, optimizer="adamw-fused")
    yield _at("gpt2", precision="bf16", replicas=_REPLICAS, accumulation_steps=4, grad_clip_norm=1.0)
    yield from (_at(m, grad_clip_norm=1.0) for m in ("gpt2", "resnet50"))
    yield from (_at(m, precision="bf16", compiled=True) for m in _COMPILED)
    yield from (_at(m, compiled=True) for m in ("resnet18", "gpt2", "vit-small"))
    yield from (_at(m, precision="bf16", compiled=True, activation_checkpointing=True) for m in ("gpt2", "llama-160m"))
    yield from (_at(m, precision="bf16", compiled=True, cuda_graphs=True) for m in _IN_GRAPHS)


def _at(name: str, **settings: Any) -> Case:
    return dataclasses.replace(Case(model=name, micro_batch_size=MODELS[name].sizes[1]), **settings)


def trainable(case: Case) -> models.Trainable:
    """Return the case's model, with what is frozen frozen, its batch and its loss."""
    plain = MODELS[case.model].make()
    frozen = {"all": lambda model: model, "head": models.with_frozen_backbone, "low-rank": models.with_low_rank_updates}
    return dataclasses.replace(plain, model=lambda: frozen[case.trained](plain.model()))
