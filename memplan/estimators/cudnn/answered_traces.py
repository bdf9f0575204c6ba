"""Traces in which cuDNN's answers, or else expectations, size the workspaces of convolutions at any micro-batch."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.estimators.cudnn.asking import CudnnAnswers, CudnnQuestions, ask
from memplan.estimators.temporaries.card_generations import Generation
from memplan.estimators.temporaries.convolution_workspaces import workspace_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from memplan.estimators.step_trace import DrawnBatches, StepTrace
    from memplan.estimators.temporaries.convolutions import Convolution
    from memplan.recipe import Recipe

# Micro-batches to ask about: powers of two, and half way between each two.
_ASKED_SIZES = (1, 2, *(size for power in range(1, 10) for size in (3 * 2 ** (power - 1), 2 ** (power + 1))))
_SEARCHED_SIZES = (1, 4, 16, 64, 256)  # fewer: cuDNN takes twenty times as long to tell of all its algorithms

_BY_CUDNN = "workspaces of convolutions are what cuDNN {version} answers for compute capability {capability}"
_ON_HOPPER = "with what Hopper takes beside, which only the card tells and a rule works out"
_SEARCH = (
    "cuDNN's search for algorithms (benchmark mode), which may take all that is free in the first step for a while"
)
_EXPECTED = "workspaces that cuDNN chooses for convolutions, beyond what memplan expects: {reason}"
_NOT_LINEAR = "their batches are no linear function of the micro-batch"
_UNKNOWN_CARD = "of the card only the size is known"
_NOT_ALL = "cuDNN {version} proposes nothing for some of them"


def with_cudnns_answers(trace: StepTrace, *, exact_sizes: Collection[int] = ()) -> StepTrace:
    """Ask cuDNN about the convolutions of a trace; what it does not answer is sized as expected, and the trace says so.

    Args:
        trace: as it was recorded.
        exact_sizes: micro-batch sizes to ask about beside the trace's own and some that others lie between.
    """
    if not any(each.workspaces.has_any for each in trace.timelines):
        return trace
    sizes = {trace.recipe.micro_batch_size, *exact_sizes}
    found = _answered(trace, sorted({*_ASKED_SIZES, *sizes}), sorted({*_SEARCHED_SIZES, *sizes}))
    if trace.is_in_benchmark_mode and all(each.searches is None for each in found.timelines):
        return replace(found, uncounted=(*found.uncounted, _SEARCH))
    return found


def with_expected_workspaces(trace: StepTrace) -> StepTrace:
    """Size the convolutions of a trace as expected; those whose batches do not grow evenly keep their traced sizes."""
    return _sized(trace, sorted({*_ASKED_SIZES, trace.recipe.micro_batch_size}), {})


def _answered(trace: StepTrace, sizes: Sequence[int], searched_sizes: Sequence[int]) -> StepTrace:
    calls = _calls(trace, sizes)
    if trace.compute_capability is None or not calls:
        return _as_expected(trace, _UNKNOWN_CARD if trace.compute_capability is None else _NOT_LINEAR)
    searched = _calls_at(trace, searched_sizes) if trace.is_in_benchmark_mode else ()
    questions = CudnnQuestions(
        capability=trace.compute_capability, sm_count=trace.sm_count, convolutions=calls, searched=searched
    )
    answers = ask(questions)
    if not isinstance(answers, CudnnAnswers):
        return _as_expected(_sized(trace, sizes, {}), answers)
    told = {call: size for call, size in zip(calls, answers.workspace_bytes, strict=True) if size is not None}
    found = _sized(trace, sizes, told)
    if answers.search_bytes:
        found = _searching(found, searched_sizes, dict(zip(searched, answers.search_bytes, strict=True)))
    if told:
        note = _BY_CUDNN.format(version=answers.version, capability="{}.{}".format(*trace.compute_capability))
        is_hopper = Generation.of(trace.compute_capability, trace.sm_count) is Generation.HOPPER
        found = replace(found, notes=(*found.notes, f"{note}, {_ON_HOPPER}" if is_hopper else note))
    return found if len(told) == len(calls) else _as_expected(found, _NOT_ALL.format(version=answers.version))


def _calls_at(trace: StepTrace, sizes: Sequence[int]) -> tuple[Convolution, ...]:
    calls = (call for each in trace.timelines for size in sizes for call in each.workspaces.calls_at(size))
    return tuple(dict.fromkeys(calls))


def _calls(trace: StepTrace, sizes: Sequence[int]) -> tuple[Convolution, ...]:
    """Return the calls at some sizes, and those on the batches that will be drawn."""
    calls, drawn = _calls_at(trace, sizes), trace.drawn
    if drawn is None:
        return calls
    of_drawn = drawn.workspaces.calls(trace.recipe.micro_batch_size, _drawn_shares(drawn, trace.recipe))
    return tuple(dict.fromkeys((*calls, *itertools.chain(*of_drawn))))


def _drawn_shares(drawn: DrawnBatches, recipe: Recipe) -> list[float]:
    """Return the sizes of the batches that will be replayed, as shares of the worst's."""
    return sorted({1.0, *drawn.batch_shares(recipe.micro_batch_size).ravel().tolist()})


def _sized(trace: StepTrace, sizes: Sequence[int], told: Mapping[Convolution, int]) -> StepTrace:
    """Size the convolutions as cuDNN told, and as expected where it did not; not for a card of unknown capability."""
    if trace.compute_capability is None:
        return trace
    generation = Generation.of(trace.compute_capability, trace.sm_count)
    known = {call: told[call] if call in told else workspace_bytes(call, generation) for call in _calls(trace, sizes)}
    timelines = (replace(each, sized_workspaces=each.workspaces.sized(sizes, known)) for each in trace.timelines)
    drawn, size = trace.drawn, trace.recipe.micro_batch_size
    if drawn is not None:
        drawn = replace(drawn, workspaces=drawn.workspaces.sized(size, _drawn_shares(drawn, trace.recipe), known))
    return replace(trace, timelines=tuple(timelines), drawn=drawn)


def _searching(trace: StepTrace, sizes: Sequence[int], told: Mapping[Convolution, int | None]) -> StepTrace:
    """Add what the search for algorithms takes; nothing for calls that cuDNN proposes no algorithm for."""
    known = {call: size or 0 for call, size in told.items()}
    timelines = (replace(each, searches=each.workspaces.first_calls().sized(sizes, known)) for each in trace.timelines)
    return replace(trace, timelines=tuple(timelines))


def _as_expected(trace: StepTrace, reason: str) -> StepTrace:
    return replace(trace, uncounted=(*trace.uncounted, _EXPECTED.format(reason=reason)))
