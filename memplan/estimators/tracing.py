"""The parent's side of a trace: start the child, hand it the workload, take the trace or the user's error."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import psutil

from memplan.children import Template, run_child
from memplan.devices.host_memory import host_memory
from memplan.errors import MemplanError, TraceError, UsageError, WorkloadError
from memplan.estimators.cudnn import with_cudnns_answers
from memplan.estimators.step_trace import StepTrace
from memplan.training.environment import WITHOUT_CARD
from memplan.units import format_bytes
from memplan.user_places import place_in_dump

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from memplan.children import ChildEnding
    from memplan.devices.cards import DeviceSpec
    from memplan.recipe import Recipe
    from memplan.workload import WorkloadSource

# Small, and above 1: a batch of one sample takes other paths (strides of size-1 dimensions, batch statistics).
_BATCH_SIZES = (2, 3, 5)
TRACE_LIMIT_S = 600.0
_WORKER_MODULE = "memplan.estimators.recorder.worker"
_FREE_MEMORY_SHARE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedSetting:
    """What one trace of a workload differs in from others on the same device.

    Args:
        recipe: the setting of the step; at its micro-batch size workspaces of convolutions are exact.
        fused_optimizer: whether the optimizer's fused implementation takes the place of the one it would choose.
    """

    recipe: Recipe
    fused_optimizer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """What the child is asked to trace.

    Args:
        source: where the workload comes from.
        setting: the setting of the step.
        device: what the step is lowered to.
        batch_sizes: micro-batch sizes to run, at least two; a third is run only where two do not settle a size.
        card_is_seen: whether user code that asks for a card finds the one that the step is lowered to.
        may_compute: whether a step that cannot be traced may be computed, which takes memory as a real one does.
    """

    source: WorkloadSource
    setting: TracedSetting
    device: DeviceSpec
    batch_sizes: tuple[int, ...] = _BATCH_SIZES
    card_is_seen: bool = True
    may_compute: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceBeside:
    """The child's further answers: the trace of a setting beside the first."""

    setting: TracedSetting
    trace: StepTrace


class SeenCardError(WorkloadError):
    """The workload cannot be loaded or raises, after it has asked for a card and found the one that is not there."""


def trace_template(imports: Collection[str] = ()) -> Template:
    """Return a template of traces: torch is loaded once, and each trace forked from there.

    Args:
        imports: further modules of installed packages that every trace would load.
    """
    return Template(_WORKER_MODULE, imports)


def trace_step(
    source: WorkloadSource,
    recipe: Recipe,
    device: DeviceSpec,
    *,
    fused_optimizer: bool = False,
    limit_s: float | None = None,
    template: Template | None = None,
    exact_sizes: Collection[int] = (),
) -> StepTrace:
    """Trace one setting of a workload's training step, as :func:`trace_steps` does several."""
    setting = TracedSetting(recipe=recipe, fused_optimizer=fused_optimizer)
    traces = trace_steps(source, (setting,), device, limit_s=limit_s, template=template, exact_sizes=exact_sizes)
    return traces[setting]


def trace_steps(
    source: WorkloadSource,
    settings: Sequence[TracedSetting],
    device: DeviceSpec,
    *,
    limit_s: float | None = None,
    template: Template | None = None,
    exact_sizes: Collection[int] = (),
) -> dict[TracedSetting, StepTrace]:
    """Trace a workload's training step on fake tensors in a child process that sees no GPU.

    The child is held to most of the memory that is free, because a step that cannot run on fake tensors is computed.
    It loads the workload once, and traces all settings at the same time.

    Args:
        source: where the workload comes from.
        settings: what is traced, at least one. Those after the first are left out of the answer where they raise, must
            be computed or cannot share a process's imports: a call for each alone tells.
        device: what the step is lowered to; nothing runs on it.
        limit_s: how long the child may take, imports included; None for ``TRACE_LIMIT_S``.
        template: forks the child, so that one of several traces does not load torch again; of traces, or any other that
            has torch loaded; None starts the child anew.
        exact_sizes: further micro-batch sizes at which they are; between two they are interpolated.

    Raises:
        UsageError: no time is given.
        WorkloadError: the workload cannot be loaded, raises or breaks its contract in the first setting; ``detail``
            holds the traceback.
        TraceError: the first cannot be traced, or not within the limits; ``detail`` says where the child was.
    """
    limit_s = TRACE_LIMIT_S if limit_s is None else limit_s
    if not limit_s > 0:
        raise UsageError(f"trace-limit {limit_s:g} must be more than 0 seconds")
    requests = tuple(TraceRequest(source=source, setting=each, device=device) for each in settings)
    watch = _Watch(limit_s=limit_s, limit_bytes=int(_FREE_MEMORY_SHARE * host_memory().free_bytes))
    try:
        traces = _answers(requests, watch, template)
    except SeenCardError:  # in a new process: packages that failed to be imported cannot be in the same one
        unseen = tuple(replace(each, card_is_seen=False) for each in requests)
        traces = _answers(unseen, watch, template)
    return {each: with_cudnns_answers(trace, exact_sizes=exact_sizes) for each, trace in traces.items()}


def _answers(
    requests: tuple[TraceRequest, ...], watch: _Watch, template: Template | None
) -> dict[TracedSetting, StepTrace]:
    ending = run_child(
        _WORKER_MODULE,
        requests,
        watch=watch.find_reason_to_stop,
        environment=WITHOUT_CARD,
        template=template,
    )
    beside = {each.setting: each.trace for each in ending.messages if isinstance(each, TraceBeside)}
    return {requests[0].setting: _answer_of(ending, watch), **beside}


@dataclass(slots=True, kw_only=True)
class _Watch:
    """Stops a child that takes too long or too much memory, and knows what the user can do then."""

    limit_s: float
    limit_bytes: int
    hint: str | None = None

    def find_reason_to_stop(self, pid: int, age_s: float) -> str | None:
        if age_s > self.limit_s:
            self.hint = f"--trace-limit {4 * self.limit_s:g} gives it more time"
            return f"tracing was stopped after {self.limit_s:g} s"
        resident_bytes = _resident_bytes(pid)
        if resident_bytes > self.limit_bytes:
            self.hint = (
                "stop what else runs here, or keep values of tensors out of Python's control flow, so that the step "
                "need not be computed"
            )
            return (
                f"tracing was stopped at {format_bytes(resident_bytes)} of resident memory, which is "
                f"{_FREE_MEMORY_SHARE:.0%} of what was free on this machine when it began"
            )
        return None


def _resident_bytes(pid: int) -> int:
    try:
        resident: int = psutil.Process(pid).memory_info().rss
    except psutil.Error:  # it has just ended
        return 0
    return resident


def _answer_of(ending: ChildEnding, watch: _Watch) -> StepTrace:
    for message in ending.messages:
        if isinstance(message, StepTrace):
            return message
        if isinstance(message, MemplanError):
            raise message
    log = ending.log_tail or None
    if ending.stop_reason is not None:
        raise TraceError(ending.stop_reason, where=place_in_dump(ending.log_tail), hint=watch.hint, detail=log)
    raise TraceError(f"the tracing process {_end_text(ending)}", where=place_in_dump(ending.log_tail), detail=log)


def _end_text(ending: ChildEnding) -> str:
    if ending.return_code < 0:
        return f"was ended by {signal.Signals(-ending.return_code).name}"
    last_line = f"; its last line: {ending.last_line}" if ending.last_line else ""
    return f"ended with status {ending.return_code} and no answer{last_line}"
