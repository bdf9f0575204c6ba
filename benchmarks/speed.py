"""How long a trace and a thousand answers from it take, and how much memory the tracing process needs.

    python benchmarks/speed.py [--only NAME,...] [--candidates 1000]

Needs timm and transformers. Every model is built from its configuration and traced in a process of its own, after all
imports. Times are CPU seconds of that process, which waits for nothing: wall time on an idle machine, and repeatable on
a busy one. The resident set is that of the process with torch, timm and transformers loaded. Of the candidates,
micro-batch sizes from 1 on, the largest that fits the card is solved for; then every one of them is replayed for its
process peak.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from architectures import CARD, from_settings, language_workload, timm_workload, trace_here
from detection_operators import define_detection_operators
from forked import run_forked

from memplan.estimators.answers import estimate, largest_micro_batch, process_peak
from memplan.training.skipped_initialisation import patch_initialisers
from memplan.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.workload import Workload

LIMIT_S = 300.0
FP32_BYTES = 4  # of a weight, under autocast too
UP_TO_A_BILLION = ("resnet50", "vit_base_patch16_224", "vit_huge_patch14_224", "gpt2")


def _language(name: str, family: str, head: str, tokens: int, **settings: int) -> Workload:
    return language_workload(functools.partial(from_settings, family, head, **settings), tokens, name)


MODELS: dict[str, tuple[str, Callable[[], Workload]]] = {
    **{name: ("fp32", functools.partial(timm_workload, name)) for name in UP_TO_A_BILLION[:3]},
    "gpt2": ("fp32", lambda: _language("gpt2", "GPT2", "LMHeadModel", 1024)),
    "llama-7b": ("bf16", lambda: _language("llama-7b", "Llama", "ForCausalLM", 2048)),
    "llama-70b": (
        "bf16",
        lambda: _language(
            "llama-70b",
            "Llama",
            "ForCausalLM",
            2048,
            hidden_size=8192,
            intermediate_size=28672,
            num_hidden_layers=80,
            num_attention_heads=64,
            num_key_value_heads=8,
        ),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What one model took."""

    parameter_count: int
    events: int
    trace_s: float
    solve_s: float
    replay_s: float


def measured(name: str, candidates: int) -> Timing:
    """Trace a model and replay its first ``candidates`` micro-batch sizes."""
    precision, make = MODELS[name]
    workload = make()
    started = time.process_time()
    trace = trace_here(workload, precision)
    traced = time.process_time()
    largest_micro_batch(process_peak(trace, CARD), limit_bytes=CARD.total_bytes, cap=candidates)
    solved = time.process_time()
    peak_at = process_peak(trace, CARD)
    for size in range(1, candidates + 1):
        peak_at(size)
    return Timing(
        parameter_count=estimate(trace, micro_batch_size=1, device=CARD).breakdown.parameters // FP32_BYTES,
        events=len(trace.timelines[0].event_blocks),
        trace_s=traced - started,
        solve_s=solved - traced,
        replay_s=time.process_time() - solved,
    )


def main() -> None:
    """Print one row per model, then the median of the models up to a billion parameters."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(MODELS), help="models to time, by name")
    parser.add_argument("--candidates", type=int, default=1000)
    options = parser.parse_args()
    _import_everything()
    title = f"{'model':<24}{'parameters':>12}{'events':>9}{'trace':>9}{'peak RSS':>11}{'largest':>10}"
    print(f"{title}{f'all {options.candidates}':>11}")
    small = []
    for name in options.only.split(","):
        ended = run_forked(measured, name, options.candidates, limit_s=LIMIT_S)
        if ended.failure is not None:
            print(f"{name:<24}{ended.failure}")
            continue
        timing: Timing = ended.value
        print(
            f"{name:<24}{timing.parameter_count / 1e6:>10.0f} M{timing.events:>9}{timing.trace_s:>7.2f} s"
            f"{ended.peak_resident_bytes / MIB:>7.0f} MiB{timing.solve_s:>8.2f} s{timing.replay_s:>9.2f} s",
            flush=True,
        )
        small += [timing.trace_s] if name in UP_TO_A_BILLION else []
    if small:
        print(f"median trace of models up to a billion parameters: {statistics.median(small):.2f} s")


def _import_everything() -> None:
    define_detection_operators()
    import timm  # noqa: F401
    import transformers

    transformers.LlamaForCausalLM, transformers.GPT2LMHeadModel  # noqa: B018 - its names are imported when asked for
    patch_initialisers()


if __name__ == "__main__":
    main()
