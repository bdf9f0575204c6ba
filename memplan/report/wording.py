"""How recipes, shares and errors are written, the same in every renderer."""

from __future__ import annotations

from datetime import UTC, datetime

from memplan.results import OutcomeKind
from memplan.units import format_bytes, format_rate

NOTHING = "-"
RECIPE_SIZES = "micro-batch x accumulation"

_SHORT_OUTCOMES = {
    OutcomeKind.DEVICE_OUT_OF_MEMORY: "OOM device",
    OutcomeKind.HOST_OUT_OF_MEMORY: "OOM host",
    OutcomeKind.ALLOCATOR_RETRIES: "retries",
    OutcomeKind.KERNEL_FAILURE: "kernel",
    OutcomeKind.NON_FINITE_LOSS: "NaN loss",
    OutcomeKind.TOO_FEW_STEPS: "few steps",
}

_ON_THE_CPU = {"context": "interpreter and libraries", "allocator slack": "heap slack"}


def component_text(name: str, device_name: str) -> str:
    """Write a component of the process peak; the CPU has no CUDA context and no caching allocator."""
    words = name.replace("_", " ")
    return _ON_THE_CPU.get(words, words) if device_name == "cpu" else words


def outcome_text(kind: OutcomeKind) -> str:
    """Write an outcome in at most ten letters."""
    return _SHORT_OUTCOMES.get(kind, str(kind))


def cached_text(made_at: str) -> str:
    """Say that a plan comes from the cache, and when it was made."""
    moment = datetime.fromisoformat(made_at).astimezone(UTC)
    return f"Cached plan of {moment:%Y-%m-%d %H:%M} UTC: nothing that decides it has changed. --fresh plans anew."


def bytes_text(count_bytes: int | None) -> str:
    """Write bytes in binary units, or a dash where there are none."""
    return NOTHING if count_bytes is None else format_bytes(count_bytes)


def share_text(share: float | None) -> str:
    """Write a share as whole percent, or a dash."""
    return NOTHING if share is None else f"{share:.0%}"


def error_text(error: float | None) -> str:
    """Write a relative error with its sign, or a dash; one beyond tenfold only as that."""
    if error is None:
        return NOTHING
    return f"{error:+.1%}" if abs(error) < 10 else "> 10x"


def deviation_text(deviation: float | None, steps: int | None) -> str:
    """Write by how much losses differ and over how many steps, or a dash."""
    if deviation is None or steps is None:
        return NOTHING
    return f"{deviation:.2%} in {steps} {'step' if steps == 1 else 'steps'}"


def rate_text(samples_per_s: float | None) -> str:
    """Write samples per second, or a dash."""
    return NOTHING if samples_per_s is None else format_rate(samples_per_s)
