"""Traces in which cuDNN's answers, or else a rule, size the workspaces of convolutions at any micro-batch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.estimators.cudnn.asking import CudnnAnswers, CudnnQuestions, ask
from memplan.estimators.temporaries.convolution_workspaces import workspace_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan.estimators.step_trace import StepTrace
    from memplan.estimators.temporaries.convolutions import Convolution

# Micro-batches to ask about: powers of two, and half way between each two.
ASKED_SIZES = (1, 2, *(size for power in range(1, 10) for size in (3 * 2 ** (power - 1), 2 ** (power + 1))))
_SEARCHED_SIZES = (1, 4, 16, 64, 256)  # fewer: cuDNN takes forty times as long to tell of all its algorithms

_BY_CUDNN = "workspaces of convolutions are what cuDNN {version} answers for compute capability {capability}"
_SEARCH = (
    "cuDNN's search for algorithms (benchmark mode), which may take all that is free in the first step for a while"
)
_BY_RULE = "workspaces that cuDNN chooses for convolutions, beyond a rule of thumb: {reason}"
_NOT_LINEAR = "their batches are no linear function of the micro-batch"
_UNKNOWN_CARD = "of the card only the size is known"
_OLD_CARD = "cuDNN 9 knows cards from Turing on"
_NOT_ALL = "cuDNN {version} proposes nothing for some of them"
_KNOWN_FROM = (7, 5)


def with_cudnns_answers(trace: StepTrace) -> StepTrace:
    """Ask cuDNN about the convolutions of a trace; what it does not answer a rule sizes, and the trace says so."""
    if not any(each.workspaces.has_any for each in trace.timelines):
        return trace
    found = _answered(trace)
    if trace.is_in_benchmark_mode and all(each.searches is None for each in found.timelines):
        return replace(found, uncounted=(*found.uncounted, _SEARCH))
    return found


def with_ruled_workspaces(trace: StepTrace) -> StepTrace:
    """Size the convolutions of a trace by the rule; those whose batches do not grow evenly keep their traced sizes."""
    return trace if trace.compute_capability is None else _sized(trace, trace.compute_capability, {})


def _answered(trace: StepTrace) -> StepTrace:
    calls = _calls_at(_asked_sizes(trace), trace)
    if trace.compute_capability is None or not calls:
        return _by_rule(trace, _UNKNOWN_CARD if trace.compute_capability is None else _NOT_LINEAR)
    if trace.compute_capability < _KNOWN_FROM:
        return _by_rule(with_ruled_workspaces(trace), _OLD_CARD)
    searched = _calls_at(_searched_sizes(trace), trace) if trace.is_in_benchmark_mode else ()
    answers = ask(CudnnQuestions(capability=trace.compute_capability, convolutions=calls, searched=searched))
    if not isinstance(answers, CudnnAnswers):
        return _by_rule(with_ruled_workspaces(trace), answers)
    told = {call: size for call, size in zip(calls, answers.workspace_bytes, strict=True) if size is not None}
    found = _sized(trace, trace.compute_capability, told)
    if answers.search_bytes:
        found = _searching(found, dict(zip(searched, answers.search_bytes, strict=True)))
    if told:
        note = _BY_CUDNN.format(version=answers.version, capability="{}.{}".format(*trace.compute_capability))
        found = replace(found, notes=(*found.notes, note))
    return found if len(told) == len(calls) else _by_rule(found, _NOT_ALL.format(version=answers.version))


def _asked_sizes(trace: StepTrace) -> list[int]:
    return sorted({*ASKED_SIZES, trace.recipe.micro_batch_size})


def _searched_sizes(trace: StepTrace) -> list[int]:
    return sorted({*_SEARCHED_SIZES, trace.recipe.micro_batch_size})


def _calls_at(sizes: list[int], trace: StepTrace) -> tuple[Convolution, ...]:
    return tuple({call: None for each in trace.timelines for size in sizes for call in each.workspaces.calls_at(size)})


def _sized(trace: StepTrace, capability: tuple[int, int], told: Mapping[Convolution, int]) -> StepTrace:
    """Size the convolutions as cuDNN told, and by the rule where it did not."""
    sizes = _asked_sizes(trace)
    known = {
        call: told[call] if call in told else workspace_bytes(call, capability) for call in _calls_at(sizes, trace)
    }
    timelines = (replace(each, sized_workspaces=each.workspaces.sized(sizes, known)) for each in trace.timelines)
    return replace(trace, timelines=tuple(timelines))


def _searching(trace: StepTrace, told: Mapping[Convolution, int | None]) -> StepTrace:
    """Add what the search for algorithms takes; nothing for calls that cuDNN proposes no algorithm for."""
    sizes, known = _searched_sizes(trace), {call: size or 0 for call, size in told.items()}
    timelines = (replace(each, searches=each.workspaces.first_calls().sized(sizes, known)) for each in trace.timelines)
    return replace(trace, timelines=tuple(timelines))


def _by_rule(trace: StepTrace, reason: str) -> StepTrace:
    return replace(trace, uncounted=(*trace.uncounted, _BY_RULE.format(reason=reason)))
