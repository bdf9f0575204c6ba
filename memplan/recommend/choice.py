"""The choice among recipes that were tried.

Band first, then throughput; a recipe within 3 % of the fastest is as good and the smaller one wins, and the recipe the
user already has wins over any that is not better by more than that. Where nothing reaches the band, a larger recipe is
not taken for being nearer to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.recommend.band import REPEATABILITY, Place
from memplan.recommend.speeds import apart_from_rate, compare_roughly, fastest_run, unsteadiness
from memplan.units import format_bytes, format_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.recipe import Recipe
    from memplan.recommend.band import Band
    from memplan.results import Trial

EQUAL_THROUGHPUT = 0.03
TENFOLD = 10.0  # times as fast, which shows a disturbed run, or a batch size that is not heeded, rather than the recipe


def choose(trials: Sequence[Trial], band: Band, *, current: Recipe) -> Trial | None:
    """Choose among the trials that fit below the band's upper edge; None where there is none.

    Args:
        trials: live runs of any recipes on one device.
        band: the utilisation to land in.
        current: the recipe in the user's config.
    """
    candidates = _candidates(_fitting(trials, trials), band)
    if not candidates:
        return None
    fastest = max(run.samples_per_s for run in candidates)
    equals = [run for run in candidates if run.samples_per_s >= fastest * (1 - EQUAL_THROUGHPUT)]
    kept = next((run for run in equals if run.trial.recipe == current), None)
    return (kept or min(equals, key=lambda run: run.peak_device_bytes)).trial


def explain(
    trial: Trial, trials: Sequence[Trial], band: Band, *, current: Recipe, current_name: str = "current recipe"
) -> tuple[str, ...]:
    """Say why a trial that fits is recommended: where it peaks, and how fast it is beside the others."""
    same, now = apart_from_rate(trial.recipe), apart_from_rate(current)
    competing = [each for each in trials if competes(each.recipe, trial.recipe)]
    others = (each for each in competing if apart_from_rate(each.recipe) != same)
    runs = (trial, *trials)
    fitting = _fitting([trial, *others], runs)
    was_reached = any(band.place(run.peak_device_bytes) is Place.INSIDE for run in _fitting(competing, runs))
    before = next((run for run in _fitting(runs, runs) if apart_from_rate(run.trial.recipe) == now), None)
    unsteady = unsteadiness(trial.recipe, runs)
    if compare_roughly(trial.recipe, runs) or compare_roughly(current, runs):
        before = None
    candidates = _candidates(fitting, band)
    return (
        *_memory_reasons(fitting[0], candidates, band, was_reached=was_reached),
        *_reasons_to_stop(trial, competing),
        *_speed_reasons(fitting[0], candidates, before, current_name),
        *([] if unsteady is None else [unsteady]),
    )


def competes(recipe: Recipe, with_recipe: Recipe) -> bool:
    """Whether a recipe was a candidate beside another: the same accumulation, or another split of its global batch."""
    return recipe.accumulation_steps == with_recipe.accumulation_steps or (
        recipe.global_batch_size == with_recipe.global_batch_size
    )


def _fitting(trials: Sequence[Trial], runs: Sequence[Trial]) -> list[_Run]:
    return [
        _Run(trial=trial, peak_device_bytes=measured.peak_device_bytes, samples_per_s=speed)
        for trial in trials
        if trial.fits and (measured := trial.outcome.measurement) and (speed := fastest_run(trial.recipe, runs))
    ]


def _candidates(fitting: list[_Run], band: Band) -> list[_Run]:
    allowed = [run for run in fitting if band.place(run.peak_device_bytes) is not Place.ABOVE]
    inside = [run for run in allowed if band.place(run.peak_device_bytes) is Place.INSIDE]
    return inside or allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A trial that fits, and the speed of its recipe's fastest run."""

    trial: Trial
    peak_device_bytes: int
    samples_per_s: float


def _memory_reasons(chosen: _Run, candidates: list[_Run], band: Band, *, was_reached: bool) -> list[str]:
    peak_bytes = chosen.peak_device_bytes
    wanted = f"{band.min_utilisation:.0%} to {band.max_utilisation:.0%} wanted"
    share = f"{peak_bytes / band.total_bytes:.0%} of {format_bytes(band.total_bytes)}"
    reasons = [f"It peaks at {format_bytes(peak_bytes)}, {share} ({wanted})."]
    if band.place(peak_bytes) is not Place.BELOW:
        return reasons
    if was_reached:
        just = "just " if peak_bytes >= band.lower_bytes * (1 - REPEATABILITY) else ""
        return [*reasons, f"Runs before it reached the band; run as it is recommended, it stays {just}below."]
    is_nearest = chosen.peak_device_bytes == max(run.peak_device_bytes for run in candidates)
    standing = "this is the nearest below it" if is_nearest else "what comes nearer to it is no faster"
    return [*reasons, f"Nothing that was tried reaches the band; {standing}."]


def _reasons_to_stop(chosen: Trial, competing: Sequence[Trial]) -> list[str]:
    """Say how the smallest of the larger sizes ended that failed for another reason than memory: none beyond it ran."""
    failed = (
        each
        for each in competing
        if each.recipe.precision is chosen.recipe.precision
        and each.recipe.micro_batch_size > chosen.recipe.micro_batch_size
        and each.failed_otherwise
    )
    first = min(failed, key=lambda each: each.recipe.micro_batch_size, default=None)
    if first is None:
        return []
    size, outcome = first.recipe.micro_batch_size, first.outcome
    return [f"Micro-batch {size} ended as {outcome.kind}, so that no larger one was judged: {outcome.evidence}"]


def _speed_reasons(chosen: _Run, candidates: list[_Run], before: _Run | None, before_name: str) -> list[str]:
    speed = chosen.samples_per_s
    reasons = []
    if len(candidates) > 1:
        fastest = max(run.samples_per_s for run in candidates)
        share = round(100 * speed / fastest)
        near = "as fast as the fastest" if share == 100 else f"at {share}% of the fastest"
        standing = "the fastest" if speed >= fastest else near
        reasons.append(f"At {format_rate(speed)} samples/s it is {standing} of {len(candidates)} recipes there.")
    if before and before.trial is not chosen.trial:
        speedup = speed / before.samples_per_s
        why = "" if speedup >= 1 - EQUAL_THROUGHPUT else ", since the band comes first"
        times = f"{speedup:.2f}" if speedup < TENFOLD else "more than ten"
        rate = format_rate(before.samples_per_s)
        reasons.append(f"The {before_name} runs {rate} samples/s; this is {times} times that{why}.")
    return reasons
