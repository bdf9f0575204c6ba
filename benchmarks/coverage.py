"""How many models trace without failure: random ones of timm, architectures of transformers, and of other libraries.

    python benchmarks/coverage.py [--library timm|transformers|other] [--count 100] [--seed 0] [--first 0] [--only NAME]

Needs timm and transformers, and skips what is missing of the other libraries. timm's models run at their default input
size; transformers' from their configuration class, all sizes at their defaults but for two layers; the others as
``other_libraries.py`` says. A model counts as traced where its optimizer steps in fp32 on fake tensors, lowered to an
A100, are recorded; computed on the CPU counts apart, and so does what cannot be built here.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from architectures import from_settings, language_workload, timm_workload, trace_here
from detection_operators import define_detection_operators
from forked import run_forked
from other_libraries import MODELS, workload

from memplan.estimators.recorder.trace_assembly import FAKE_METHOD
from memplan.training.skipped_initialisation import patch_initialisers
from memplan.workload import Workload

if TYPE_CHECKING:
    from torch import nn

LIMIT_S = 120.0
TOKENS = 128
CAUSAL = (
    "GPT2", "GPTNeo", "GPTNeoX", "GPTJ", "OPT", "Bloom", "Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3", "Qwen2Moe",
    "Qwen3Moe", "Gemma", "Gemma2", "Phi", "Phi3", "Falcon", "Olmo", "Olmo2", "StableLm", "Starcoder2", "Cohere",
    "Granite", "Mamba", "CodeGen", "XGLM", "BioGpt", "Mpt", "RecurrentGemma",
)  # fmt: skip
MASKED = (
    "Bert",
    "Roberta",
    "DistilBert",
    "Albert",
    "Electra",
    "DebertaV2",
    "MPNet",
    "RoFormer",
    "XLMRoberta",
    "Nystromformer",
)
SEQ2SEQ = ("T5", "Bart", "Pegasus", "Marian", "MT5", "M2M100", "BlenderbotSmall")
IMAGE = ("ViT", "Swin", "ConvNext", "Beit", "DeiT", "Segformer", "ResNet", "MobileViT")
AUDIO = ("Wav2Vec2", "Hubert")
HEADS = (
    *((each, "ForCausalLM") for each in CAUSAL),
    *((each, "ForMaskedLM") for each in MASKED),
    *((each, "ForConditionalGeneration") for each in SEQ2SEQ),
    *((each, "ForImageClassification") for each in IMAGE),
    *((each, "ForSequenceClassification") for each in AUDIO),
)
LAYER_SETTINGS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers")


def _shortened(family: str) -> dict[str, Any]:
    """Two layers where the configuration says how many by one number; three where every third is of another kind."""
    import transformers

    defaults = getattr(transformers, f"{family}Config")()
    layers = 3 if family == "RecurrentGemma" else 2
    settings: dict[str, Any] = {
        name: layers
        for name in LAYER_SETTINGS
        if isinstance(getattr(defaults, name, None), int) and name in vars(defaults)
    }
    if family == "GPTNeo":
        settings["attention_types"] = [[["global", "local"], 1]]
    if getattr(defaults, "pad_token_id", None) is None:
        settings["pad_token_id"] = 0
    if getattr(defaults, "is_encoder_decoder", False) and getattr(defaults, "decoder_start_token_id", None) is None:
        settings["decoder_start_token_id"] = 0
    return settings


def _made(family: str, head: str) -> nn.Module:
    import transformers

    names = (f"{family}{head}", "GPT2LMHeadModel" if family == "GPT2" else "", f"{family}MTModel")
    name = next(each for each in names if each and hasattr(transformers, each))
    return from_settings(family, name.removeprefix(family), **_shortened(family))


def transformers_workload(family: str, head: str) -> Workload:
    """Tokens for language models, an image or a second of sound for the others."""
    if head in ("ForCausalLM", "ForMaskedLM", "ForConditionalGeneration"):
        return language_workload(lambda: _made(family, head), TOKENS, family)
    shape = (3, 224, 224) if head == "ForImageClassification" else (16000,)
    name = "pixel_values" if head == "ForImageClassification" else "input_values"
    return Workload(
        model=lambda: _made(family, head),
        batch=lambda size: {name: torch.zeros(size, *shape), "labels": torch.zeros(size, dtype=torch.long)},
        loss=lambda model, inputs: model(**inputs).loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        name=family,
    )


def outcome_of(library: str, name: str) -> tuple[str, str]:
    """Trace one model in a fork; say how it ended and, where it failed, why."""
    make = _MAKERS[library]
    started = time.perf_counter()
    ended = run_forked(_method, make, name, limit_s=LIMIT_S)
    took = f"{time.perf_counter() - started:.1f} s"
    if ended.failure is not None and library == "other" and "ModuleNotFoundError" in ended.failure:
        return "not installed", took
    if ended.failure is not None:
        return "failed", f"{took}  {ended.failure.strip().splitlines()[-1]}"
    return ("traced", took) if ended.value == FAKE_METHOD else ("computed on the CPU", took)


def _transformers_by_name(name: str) -> Workload:
    return transformers_workload(name, dict(HEADS)[name])


_MAKERS = {"timm": timm_workload, "transformers": _transformers_by_name, "other": workload}


def _method(make: Any, name: str) -> str:
    return trace_here(make(name), "fp32").method


def _chosen(options: argparse.Namespace) -> list[tuple[str, str]]:
    import timm

    drawn = random.Random(options.seed).sample(timm.list_models(), options.count)  # noqa: S311 - a sample, no secret
    names = [("timm", each) for each in drawn] + [("transformers", family) for family, _ in HEADS]
    names += [("other", name) for name in MODELS]
    if options.only:
        return [(library, name) for library, name in names if name in options.only.split(",")]
    return [each for each in names if options.library in (None, each[0])][options.first :]


def main() -> None:
    """Trace every chosen model, one line each, then the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", choices=("timm", "transformers", "other"))
    parser.add_argument("--count", type=int, default=100, help="how many of timm")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="skip as many")
    parser.add_argument("--only", help="models by name")
    options = parser.parse_args()
    define_detection_operators()
    import transformers

    transformers.logging.set_verbosity_error()
    patch_initialisers()
    counts: Counter[tuple[str, str]] = Counter()
    for library, name in _chosen(options):
        kind, told = outcome_of(library, name)
        counts[library, kind] += 1
        print(f"{library:<13}{name:<52}{kind:<21}{told}", flush=True)
    for (library, kind), count in sorted(counts.items()):
        print(f"{count:5d}  {library} {kind}")


if __name__ == "__main__":
    main()
