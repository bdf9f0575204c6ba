"""What each precision is worth, judged from its trials against fp32 on the same data and seed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from memplan.recommend.choice import choose
from memplan.results import OutcomeKind, PrecisionVerdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.recipe import Precision, Recipe
    from memplan.recommend.band import Band
    from memplan.results import Measurement, Trial


def loss_deviation(losses: Sequence[float], reference: Sequence[float]) -> float | None:
    """Largest relative difference between two runs' losses, step by step; None where they share no finite step."""
    pairs = [(a, b) for a, b in zip(losses, reference, strict=False) if math.isfinite(a) and math.isfinite(b) and b]
    return max((abs(a - b) / abs(b) for a, b in pairs), default=None)


def judge(precision: Precision, trials: Sequence[Trial], *, reference: Trial | None, band: Band) -> PrecisionVerdict:
    """Sum up the trials of one precision.

    Args:
        precision: the number format that is judged.
        trials: all live runs so far, of any precision.
        reference: the fp32 run to compare losses, memory and speed with; None where there is none.
        band: the utilisation to land in.
    """
    own = [trial for trial in trials if trial.recipe.precision is precision and trial.recipe.accumulation_steps == 1]
    own = own or [trial for trial in trials if trial.recipe.precision is precision]
    if not own:
        return PrecisionVerdict(precision=precision, best=None, estimate=None, loss_deviation=None, remark="not tried")
    choice = choose(own, band, current=own[0].recipe)
    if choice is None:
        return PrecisionVerdict(
            precision=precision, best=None, estimate=None, loss_deviation=None, remark=_why_nothing_fits(own)
        )
    same = _same_setting(own, reference.recipe) if reference else None
    return PrecisionVerdict(
        precision=precision,
        best=choice.trial,
        estimate=choice.trial.estimate,
        loss_deviation=_deviation(same, reference),
        remark=_remark(same, reference, precision),
    )


def _why_nothing_fits(own: Sequence[Trial]) -> str:
    hopeless = next((trial for trial in own if not trial.outcome.kind.is_too_large and not trial.fits), own[-1])
    if hopeless.fits:
        return "above the band at every micro-batch that was tried"
    if hopeless.outcome.kind is OutcomeKind.TIMEOUT:
        return f"too slow here: {hopeless.outcome.evidence}"
    return f"{hopeless.outcome.kind}: {hopeless.outcome.evidence}"


def _same_setting(own: Sequence[Trial], reference: Recipe) -> Trial | None:
    setting = (reference.micro_batch_size, reference.accumulation_steps)
    return next(
        (
            each
            for each in own
            if each.fits and (each.recipe.micro_batch_size, each.recipe.accumulation_steps) == setting
        ),
        None,
    )


def _deviation(same: Trial | None, reference: Trial | None) -> float | None:
    own, other = _measurement(same), _measurement(reference)
    if own is None or other is None or same is reference:
        return None
    return loss_deviation(own.losses, other.losses)


def _remark(same: Trial | None, reference: Trial | None, precision: Precision) -> str:
    own, other = _measurement(same), _measurement(reference)
    if same is reference:
        return "the reference"
    if own is None or other is None or reference is None:
        return f"no {precision} run at the reference's micro-batch to compare"
    memory = own.peak_allocated_bytes / other.peak_allocated_bytes - 1
    speed = own.samples_per_s / other.samples_per_s
    setting = f"at micro-batch {reference.recipe.micro_batch_size}"
    change = f"{abs(memory):.0%} {'more' if memory > 0 else 'less'} tensor memory"
    return f"{change}, {speed:.2f}x the speed of {reference.recipe.precision} {setting}"


def _measurement(trial: Trial | None) -> Measurement | None:
    return trial.outcome.measurement if trial else None
