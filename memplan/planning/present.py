"""A plan for a device that is present: recipes are run there, and at the end exactly the one that is recommended."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.configs import obstacle_on_cpu
from memplan.devices.cards import DeviceKind
from memplan.planning.command_notes import command_notes, reason_to_stay
from memplan.planning.micro_batch_cap import notes_on_unfilled
from memplan.planning.recommendation import Recommendation, accumulation_notes, sentences
from memplan.planning.writing.patching import ScaledRecipe, scale
from memplan.plans.changes import COMMAND_PRECISION, DEVICE_TOTAL
from memplan.recommend.band import REPEATABILITY
from memplan.recommend.choice import explain
from memplan.recommend.knee import knee_reason

if TYPE_CHECKING:
    from memplan.planning.question import Question
    from memplan.planning.traces import Traces
    from memplan.planning.trials.live import LiveSearch
    from memplan.recipe import Recipe
    from memplan.results import Trial

_SETTLED = "memplan planned this recipe before, for the same wishes, and its peak is where it was promised."


def recommend_live(question: Question, search: LiveSearch, traces: Traces) -> Recommendation:
    """Run the current recipe and, unless that is what memplan once recommended, search for the best one.

    Raises:
        NothingFitsError: no recipe that was tried stays below the band's upper edge.
        WorkloadError: trials failed for another reason than memory, and none completed.
    """
    current = search.try_current()
    if is_settled(current, question):
        return _as_it_is(current, search.trials, _SETTLED)
    found = search.compare()
    if current.fits and (reason := reason_to_stay(question.subject, search.trials)) is not None:
        notes = command_notes(question.subject, search.trials, current.recipe)
        return replace(_as_it_is(current, search.trials, *sentences(reason)), verdicts=found.verdicts, notes=notes)
    wanted = found.chosen.recipe
    optimizer_name = traces.optimizer_name(wanted)

    def scaled(recipe: Recipe) -> ScaledRecipe:
        return scale(recipe, question.subject, question.request, optimizer_name)

    chosen = search.confirm(wanted, lambda recipe: question.subject.as_tried(scaled(recipe).recipe))
    result = scaled(chosen.recipe)
    return Recommendation(
        recipe=result.recipe,
        estimate=chosen.estimate,
        chosen=chosen,
        trials=search.trials,
        verdicts=found.verdicts,
        reasons=_reasons(question, chosen, search, rate_remark=result.remark),
        notes=(
            *([result.warning] if result.warning and _knows_rate(question) else []),
            *notes_on_unfilled(search.cap, question.subject.current),
            *notes_on_own_precision(question, result.recipe),
            *command_notes(question.subject, search.trials, result.recipe),
            *accumulation_notes(chosen.recipe, traces),
        ),
    )


def _as_it_is(current: Trial, trials: tuple[Trial, ...], *reasons: str) -> Recommendation:
    return Recommendation(
        recipe=current.recipe, estimate=current.estimate, chosen=current, trials=trials, reasons=reasons
    )


def _reasons(question: Question, chosen: Trial, search: LiveSearch, *, rate_remark: str | None) -> tuple[str, ...]:
    subject, band, cap = question.subject, question.band, search.cap
    allowed = [trial for trial in search.trials if trial.recipe.micro_batch_size <= cap.size]
    return (
        *explain(chosen, allowed, band, current=subject.current, current_name=subject.current_name),
        *([cap.reason] if chosen.recipe.micro_batch_size == cap.size else []),
        *sentences(knee_reason(chosen, allowed, band), rate_remark if _knows_rate(question) else None),
    )


def notes_on_own_precision(question: Question, recipe: Recipe) -> tuple[str, ...]:
    """Say that the config's own programs do not train on the CPU in the precision that is left as it is."""
    subject = question.subject
    is_own = recipe.precision is subject.current.precision
    if subject.config is None or subject.is_command or not is_own or question.device.kind is not DeviceKind.CPU:
        return ()
    obstacle = obstacle_on_cpu(subject.config, recipe.precision)
    return () if obstacle is None else (f"the config's own precision is left as it is, but {obstacle}",)


def _knows_rate(question: Question) -> bool:
    return question.subject.config is not None or not question.subject.is_command


def is_settled(trial: Trial, question: Question) -> bool:
    """Whether a config that memplan patched before, asked the same again, still does what was promised.

    The band is that of the first run, where the config kept what the device offered then: on the CPU that is the memory
    that happened to be free.
    """
    config, band, measured = question.subject.config, question.band, trial.outcome.measurement
    if config is None or config.original is None or measured is None or not trial.fits:
        return False
    asked = dict(config.original.options)
    total_bytes = asked.pop(DEVICE_TOTAL, band.total_bytes)
    is_precision = asked.pop(COMMAND_PRECISION, trial.recipe.precision) == trial.recipe.precision
    share = measured.peak_device_bytes / total_bytes
    low, high = band.min_utilisation - REPEATABILITY, min(band.max_utilisation + REPEATABILITY, 1.0)
    return is_precision and asked == question.request.facts() and low <= share <= high
