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

_BY_CUDNN = "Workspaces of convolutions are what cuDNN {version} answers for compute capability {capability}."
_BY_RULE = "workspaces that cuDNN chooses for convolutions, beyond a rule of thumb: {reason}"
_NOT_LINEAR = "their batches are no linear function of the micro-batch"
_UNKNOWN_CARD = "of the card only the size is known"
_OLD_CARD = "cuDNN 9 knows cards from Turing on"
_NOT_ALL = "cuDNN {version} proposes nothing for some of them"
_KNOWN_FROM = (7, 5)


def with_cudnns_answers(trace: StepTrace) -> StepTrace:
    """Ask cuDNN about the convolutions of a trace; what it does not answer a rule sizes, and the trace says so."""
    capability = trace.compute_capability
    ruled = with_ruled_workspaces(trace)
    if ruled is trace or capability is None:
        is_convolved = any(each.workspaces is not None for each in trace.timelines)
        return _by_rule(trace, _UNKNOWN_CARD if capability is None else _NOT_LINEAR) if is_convolved else trace
    if capability < _KNOWN_FROM:
        return _by_rule(ruled, _OLD_CARD)
    calls = _calls_of(trace)
    answers = ask(CudnnQuestions(capability=capability, convolutions=calls))
    if not isinstance(answers, CudnnAnswers):
        return _by_rule(ruled, answers)
    told = {call: size for call, size in zip(calls, answers.workspace_bytes, strict=True) if size is not None}
    by_rule = {call: workspace_bytes(call, capability) for call in calls if call not in told}
    found = _with_sizes(trace, {**told, **by_rule})
    if told:
        note = _BY_CUDNN.format(version=answers.version, capability="{}.{}".format(*capability))
        found = replace(found, notes=(*found.notes, note))
    return _by_rule(found, _NOT_ALL.format(version=answers.version)) if by_rule else found


def with_ruled_workspaces(trace: StepTrace) -> StepTrace:
    """Size the convolutions of a trace by the rule; those whose batches do not grow evenly keep their traced sizes."""
    calls = _calls_of(trace)
    if not calls or trace.compute_capability is None:
        return trace
    return _with_sizes(trace, {call: workspace_bytes(call, trace.compute_capability) for call in calls})


def _sizes_of(trace: StepTrace) -> list[int]:
    return sorted({*ASKED_SIZES, trace.recipe.micro_batch_size})


def _calls_of(trace: StepTrace) -> tuple[Convolution, ...]:
    found = [each.workspaces for each in trace.timelines if each.workspaces is not None]
    return tuple({call: None for each in found for size in _sizes_of(trace) for call in each.calls_at(size)})


def _with_sizes(trace: StepTrace, told: Mapping[Convolution, int]) -> StepTrace:
    sizes = _sizes_of(trace)
    timelines = tuple(
        each if each.workspaces is None else replace(each, sized_workspaces=each.workspaces.sized(sizes, told))
        for each in trace.timelines
    )
    return replace(trace, timelines=timelines)


def _by_rule(trace: StepTrace, reason: str) -> StepTrace:
    return replace(trace, uncounted=(*trace.uncounted, _BY_RULE.format(reason=reason)))
