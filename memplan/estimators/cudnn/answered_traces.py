"""Traces in which cuDNN's answers stand in the place of rules."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.estimators.cudnn.asking import CudnnAnswers, CudnnQuestions, ask

if TYPE_CHECKING:
    from memplan.estimators.step_trace import StepTrace

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
    """Ask cuDNN about the convolutions of a trace; what it does not answer keeps its rule, and the trace says so."""
    found = [each.workspaces for each in trace.timelines if each.workspaces is not None]
    if not found:
        return trace
    sizes = sorted({*ASKED_SIZES, trace.recipe.micro_batch_size})
    calls = tuple({call: None for each in found for size in sizes for call in each.calls_at(size)})
    if not calls:
        return _by_rule(trace, _NOT_LINEAR)
    if trace.compute_capability is None:
        return _by_rule(trace, _UNKNOWN_CARD)
    if trace.compute_capability < _KNOWN_FROM:
        return _by_rule(trace, _OLD_CARD)
    answers = ask(CudnnQuestions(capability=trace.compute_capability, convolutions=calls))
    if not isinstance(answers, CudnnAnswers):
        return _by_rule(trace, answers)
    told = dict(zip(calls, answers.workspace_bytes, strict=True))
    timelines = tuple(
        each if each.workspaces is None else replace(each, answered=each.workspaces.answered(sizes, told))
        for each in trace.timelines
    )
    return _with_note(replace(trace, timelines=timelines), answers.version, trace.compute_capability)


def _with_note(trace: StepTrace, version: str, capability: tuple[int, int]) -> StepTrace:
    """Say which cuDNN was asked, and whether it left some blocks to their rules."""
    asked = sum(len(each.workspaces.blocks) for each in trace.timelines if each.workspaces)
    told = sum(len(each.answered.blocks) for each in trace.timelines if each.answered)
    if told:
        note = _BY_CUDNN.format(version=version, capability="{}.{}".format(*capability))
        trace = replace(trace, notes=(*trace.notes, note))
    return trace if told == asked else _by_rule(trace, _NOT_ALL.format(version=version))


def _by_rule(trace: StepTrace, reason: str) -> StepTrace:
    return replace(trace, uncounted=(*trace.uncounted, _BY_RULE.format(reason=reason)))
