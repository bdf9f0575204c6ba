"""The outcome of trials or traces, before a patch is written for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplan.planning.traces import Traces
    from memplan.recipe import Recipe
    from memplan.results import Estimate, PrecisionVerdict, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """What is to be recommended, and on what evidence; the fields mean what they mean in a plan.

    Args:
        recipe: what is recommended, learning rate included.
        estimate: prediction of it; None where it cannot be traced.
        chosen: the trial of it; None where it was only predicted.
        trials: every live run, in order.
        reasons: why this recipe, one sentence each.
        verdicts: one for each precision that was compared.
        notes: warnings and limits, one phrase each.
    """

    recipe: Recipe
    estimate: Estimate | None
    chosen: Trial | None
    trials: tuple[Trial, ...]
    reasons: tuple[str, ...]
    verdicts: tuple[PrecisionVerdict, ...] = ()
    notes: tuple[str, ...] = ()


def accumulation_notes(recipe: Recipe, traces: Traces) -> tuple[str, ...]:
    """Say what accumulation does not do for a model with batch norm; nothing for any other."""
    if recipe.accumulation_steps > 1 and traces.uses_batch_norm(recipe):
        return (f"batch norm sees {recipe.micro_batch_size} samples at a time, whatever is accumulated",)
    return ()


def sentences(*remarks: str | None) -> tuple[str, ...]:
    """Turn those remarks that are not None into sentences."""
    return tuple(f"{each[0].upper()}{each[1:].removesuffix('.')}." for each in remarks if each is not None)
