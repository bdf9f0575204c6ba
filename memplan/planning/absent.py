"""A plan for a card that is not present: predicted for the card, and the prediction checked live on the CPU.

The check runs a small micro-batch for real on this machine's CPU and compares its peak tensor bytes with a trace for
the CPU. It shows that the workload trains and that its tensors are counted correctly; it does not show the card's own
operators, its allocator or its speed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan.errors import UsageError
from memplan.estimators import largest_micro_batch
from memplan.planning.candidate_precisions import candidate_precisions
from memplan.planning.evaluation_peak import evaluation_peak_notes
from memplan.planning.micro_batch_cap import MicroBatchCap, micro_batch_cap, notes_on_unfilled
from memplan.planning.recommendation import Recommendation, accumulation_notes, sentences
from memplan.planning.writing.patching import scale
from memplan.plans.changes import original_recipe
from memplan.probe.trials import StepLimit
from memplan.recommend.band import nothing_fits
from memplan.recommend.number_formats import named_together
from memplan.recommend.scaling import TRUSTED_RATIO, split_global_batch
from memplan.results import PrecisionVerdict
from memplan.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memplan.errors import NothingFitsError
    from memplan.planning.question import Question
    from memplan.planning.subject import Subject
    from memplan.planning.traces import Traces
    from memplan.planning.trials.session import TrialSession
    from memplan.recipe import Precision
    from memplan.results import Estimate, Trial

_CHECK_MICRO_BATCH = 2
# A longer step belongs to a model or number format made for cards: the plan does not wait for its check on the CPU.
_CHECK_STEP_LIMIT = StepLimit(limit_s=30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Largest:
    """The largest micro-batch of one precision below the band's upper edge.

    Args:
        estimate: what it takes.
        ends_with_trust: whether it stands where rules for the learning rate cease to be trusted.
    """

    estimate: Estimate
    ends_with_trust: bool


def recommend_by_estimate(question: Question, traces: Traces, session: TrialSession) -> Recommendation:
    """Recommend the largest micro-batch whose predicted process peak is below the band's upper edge.

    No speed was measured, so the user's own precision is kept where it fits, else the first that does is taken.

    Args:
        question: what is asked.
        traces: of the subject on the question's device.
        session: runs the check on this machine's CPU.

    Raises:
        NothingFitsError: no precision fits even at its smallest micro-batch.
        UsageError: none that is asked for can be used.
    """
    subject = question.subject
    obstacles = _obstacles(question, traces)
    cap = micro_batch_cap(question, traces)
    found = {each: None if why else _largest(each, question, traces, cap.size) for each, why in obstacles.items()}
    best = found.get(subject.current.precision) or next((each for each in found.values() if each is not None), None)
    if best is None:
        raise _failure(obstacles, question, traces)
    check = check_on_cpu(subject, session)
    recipe = best.estimate.recipe
    scaled = scale(recipe, subject, question.request, traces.optimizer_name(recipe))
    device_name = question.device.name
    return Recommendation(
        recipe=scaled.recipe,
        estimate=best.estimate,
        chosen=None,
        trials=session.trials,
        verdicts=tuple(_verdict(each, obstacles[each], largest) for each, largest in found.items()),
        reasons=(*_reasons(best, question, cap), *sentences(scaled.remark)),
        notes=(
            *([scaled.warning] if scaled.warning else []),
            *notes_on_unfilled(cap, subject.current),
            f"{device_name} is not present: the recipe is predicted for it, not tried, and its speed is unknown",
            _check_note(check),
            *accumulation_notes(scaled.recipe, traces),
        ),
    )


def check_on_cpu(subject: Subject, session: TrialSession) -> Trial:
    """Run a small micro-batch for real on the CPU, in the user's own precision; a slow one is stopped.

    What the workload compiles runs as it is written, as it does in a trace for the CPU.
    """
    size = min(subject.current.micro_batch_size, _CHECK_MICRO_BATCH)
    recipe = subject.current.with_micro_batch_size(size)
    return session.try_recipe(recipe, "check on the CPU", step_limit=_CHECK_STEP_LIMIT, runs_compiled=False)


def _check_note(trial: Trial) -> str:
    """Say how the check on the CPU came out."""
    measured, predicted = trial.outcome.measurement, trial.estimate
    if measured is None or predicted is None or not trial.fits:
        return f"the check on the CPU did not complete: {trial.outcome.kind}: {trial.outcome.evidence}"
    error = predicted.peak_allocated_bytes / measured.peak_allocated_bytes - 1
    return (
        f"checked live on the CPU at micro-batch {trial.recipe.micro_batch_size}: peak tensor bytes predicted "
        f"{format_bytes(predicted.peak_allocated_bytes)}, measured {format_bytes(measured.peak_allocated_bytes)} "
        f"({error:+.1%})"
    )


def _obstacles(question: Question, traces: Traces) -> dict[Precision, str | None]:
    """Say why nothing is predicted for each precision; None where something is."""
    current = question.subject.current

    def is_traced(precision: Precision) -> bool:
        return traces.of_if_traceable(replace(current, precision=precision)) is not None

    return {
        each: why or (None if is_traced(each) else "cannot be traced")
        for each, why in candidate_precisions(question).items()
    }


def _verdict(precision: Precision, obstacle: str | None, largest: _Largest | None) -> PrecisionVerdict:
    """Say what a precision is worth by its estimate at the largest micro-batch, or why it has none."""
    if largest is None:
        return PrecisionVerdict(precision=precision, remark=obstacle or "does not fit")
    remark = "predicted for the card, not run on it"
    return PrecisionVerdict(precision=precision, estimate=largest.estimate, remark=remark)


def _largest(precision: Precision, question: Question, traces: Traces, cap: int) -> _Largest | None:
    """Solve for the largest micro-batch of a precision; None where none fits."""
    request, band = question.request, question.band
    recipe = replace(question.subject.current, precision=precision)
    peak_at = traces.process_peak(recipe)
    largest = largest_micro_batch(peak_at, limit_bytes=band.upper_bytes, cap=cap)
    if largest is None:
        return None
    if request.global_batch_size is None:
        bound = None if peak_at(cap) >= band.lower_bytes else _trusted_bound(question)
        size = min(largest, bound or largest)
        found = traces.estimate(recipe.with_micro_batch_size(size))
        return _Largest(estimate=found, ends_with_trust=size == bound)
    splits = split_global_batch(request.global_batch_size, recipe.world_size, range(largest, 0, -1))
    for size, steps in splits:
        estimate = traces.estimate(replace(recipe, micro_batch_size=size, accumulation_steps=steps))
        if estimate.peak_process_bytes <= band.upper_bytes:
            return _Largest(estimate=estimate, ends_with_trust=False)
    return None


def _trusted_bound(question: Question) -> int | None:
    """Return where to stop if no micro-batch reaches the band: no rule for the learning rate is trusted further."""
    original = original_recipe(question.subject.config, question.subject.current, question.request)
    if original.learning_rate is None:
        return None
    return max(TRUSTED_RATIO * original.micro_batch_size, question.subject.current.micro_batch_size)


def _failure(
    obstacles: Mapping[Precision, str | None], question: Question, traces: Traces
) -> NothingFitsError | UsageError:
    """Say what the precisions that do not fit would need, and why others were not predicted."""
    left_out = named_together("cannot be used", {each: why for each, why in obstacles.items() if why})
    smallest = question.subject.current.with_micro_batch_size(1)
    estimates = [traces.estimate(replace(smallest, precision=each)) for each, why in obstacles.items() if not why]
    if not estimates:
        return UsageError("; ".join(left_out))
    said = [
        f"{each.recipe.precision}: micro-batch 1 needs about {format_bytes(each.peak_process_bytes)}"
        for each in estimates
    ]
    return nothing_fits(
        question.band,
        "; ".join([*said, *left_out, *evaluation_peak_notes(estimates)]),
        needed_device_bytes=min(each.peak_process_bytes for each in estimates),
    )


def _reasons(best: _Largest, question: Question, cap: MicroBatchCap) -> Iterator[str]:
    band, size = question.band, best.estimate.recipe.micro_batch_size
    peak_bytes = best.estimate.peak_process_bytes
    share = f"{peak_bytes / band.total_bytes:.0%} of {format_bytes(band.total_bytes)}"
    edges = f"{band.min_utilisation:.0%} to {band.max_utilisation:.0%} wanted"
    yield f"It is predicted to peak at {format_bytes(peak_bytes)}, {share} ({edges})."
    if size == cap.size:
        yield cap.reason
    elif best.ends_with_trust:
        yield (
            f"No micro-batch up to {cap.size} reaches the band: {size} is the most for which a rule for the learning "
            "rate holds, and nothing shows that more would be faster."
        )
