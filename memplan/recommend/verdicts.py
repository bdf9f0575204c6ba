"""What each precision is worth, judged from its trials against fp32 on the same data and seed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.recommend.choice import choose, competes
from memplan.recommend.precision_remarks import comparison_text
from memplan.results import OutcomeKind, PrecisionVerdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.recipe import Precision, Recipe
    from memplan.recommend.band import Band
    from memplan.results import Trial


def loss_deviation(losses: Sequence[float], reference: Sequence[float]) -> float | None:
    """Largest relative difference between two runs' losses, step by step; None where they share no finite step."""
    return max((abs(a - b) / abs(b) for a, b in _comparable(losses, reference)), default=None)


def _comparable(losses: Sequence[float], reference: Sequence[float]) -> list[tuple[float, float]]:
    pairs = zip(losses, reference, strict=False)
    return [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b) and b]


def judge(
    precision: Precision, trials: Sequence[Trial], *, chosen: Recipe, reference: Trial | None, band: Band
) -> PrecisionVerdict:
    """Sum up the trials of one precision.

    Args:
        precision: the number format that is judged.
        trials: all live runs so far, of any precision.
        chosen: what is going to be recommended; the best of this precision is what competed with it.
        reference: an fp32 run; losses, memory and speed are compared with those at the largest setting that ran in
            both. None where there is none.
        band: the utilisation to land in.
    """
    own = [trial for trial in trials if trial.recipe.precision is precision]
    if not own:
        return PrecisionVerdict(precision=precision, remark="not tried")
    candidates = [trial for trial in own if competes(trial.recipe, chosen)] or own
    best = choose(candidates, band, current=own[0].recipe)
    if best is None:
        return PrecisionVerdict(precision=precision, remark=_why_nothing_fits(candidates))
    if reference is None:
        return _verdict(precision, best, "no fp32 run to compare with")
    if precision is reference.recipe.precision:
        return _verdict(precision, best, "the reference")
    others = [trial for trial in trials if trial.recipe.precision is reference.recipe.precision]
    return _compared(precision, best, _largest_pair(own, others))


def _verdict(precision: Precision, best: Trial, remark: str) -> PrecisionVerdict:
    return PrecisionVerdict(precision=precision, best=best, estimate=best.estimate, remark=remark)


def _compared(precision: Precision, best: Trial, pair: tuple[Trial, Trial] | None) -> PrecisionVerdict:
    """Compare a run with the reference's at the same setting, data and seed; None where no setting ran in both."""
    own, other = (each.outcome.measurement for each in pair) if pair else (None, None)
    if pair is None or own is None or other is None:
        return _verdict(precision, best, f"no micro-batch at which both {precision} and the reference ran")
    return replace(
        _verdict(precision, best, comparison_text(own, other, precision=precision, setting=pair[1].recipe)),
        loss_deviation=loss_deviation(own.losses, other.losses),
        compared_steps=len(_comparable(own.losses, other.losses)) or None,
        speed_ratio=own.samples_per_s / other.samples_per_s,
    )


def _why_nothing_fits(own: Sequence[Trial]) -> str:
    hopeless = next((trial for trial in own if not trial.outcome.kind.is_too_large and not trial.fits), own[-1])
    if hopeless.fits:
        return "above the band at every micro-batch that was tried"
    if hopeless.outcome.kind is OutcomeKind.TIMEOUT:
        return f"too slow here: {hopeless.outcome.evidence}"
    return f"{hopeless.outcome.kind}: {hopeless.outcome.evidence}"


def _largest_pair(own: Sequence[Trial], others: Sequence[Trial]) -> tuple[Trial, Trial] | None:
    """Return the runs of two precisions at the largest setting that fits in both: kernels are timed best there."""
    known = {_setting(each.recipe): each for each in others if each.fits}
    pairs = [(each, known[_setting(each.recipe)]) for each in own if each.fits and _setting(each.recipe) in known]
    return max(pairs, key=lambda pair: _setting(pair[0].recipe), default=None)


def _setting(recipe: Recipe) -> tuple[int, int]:
    return recipe.micro_batch_size, recipe.accumulation_steps
