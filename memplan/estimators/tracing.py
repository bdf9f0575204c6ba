"""The parent's side of a trace: start the child, hand it the workload, take the trace or the user's error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.children import run_child
from memplan.errors import MemplanError, TraceError, UsageError
from memplan.estimators.step_trace import StepTrace

if TYPE_CHECKING:
    from memplan.cards import DeviceSpec
    from memplan.recipe import Recipe
    from memplan.workload import WorkloadSource

# Small, and above 1: a batch of one sample takes other paths (strides of size-1 dimensions, batch statistics).
BATCH_SIZES = (2, 3, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """What the child is asked to trace.

    Args:
        source: where the workload comes from.
        recipe: the setting of the step.
        device: what the step is lowered to.
        batch_sizes: micro-batch sizes to run, at least two; a third is run only where two do not settle a size.
    """

    source: WorkloadSource
    recipe: Recipe
    device: DeviceSpec
    batch_sizes: tuple[int, ...]


def trace_step(
    source: WorkloadSource, recipe: Recipe, device: DeviceSpec, *, batch_sizes: tuple[int, ...] = BATCH_SIZES
) -> StepTrace:
    """Trace a workload's training step on fake tensors in a child process that sees no GPU.

    Args:
        source: where the workload comes from.
        recipe: the setting of the step; its micro-batch size only shows in the estimate's notes.
        device: what the step is lowered to; nothing runs on it.
        batch_sizes: micro-batch sizes to run, at least two; a third is run only where two do not settle a size.

    Raises:
        UsageError: fewer than two different sizes are given.
        WorkloadError: the workload cannot be loaded, raises or breaks its contract; ``detail`` holds the traceback.
        TraceError: the model cannot be traced.
    """
    if len(set(batch_sizes)) < 2 or min(batch_sizes) < 1:
        raise UsageError(f"batch_sizes={batch_sizes!r} must be at least two different whole numbers above 0")
    request = TraceRequest(source=source, recipe=recipe, device=device, batch_sizes=batch_sizes)
    ending = run_child("memplan.estimators.worker", request, environment={"CUDA_VISIBLE_DEVICES": ""})
    for message in ending.messages:
        if isinstance(message, StepTrace):
            return message
        if isinstance(message, MemplanError):
            raise message
    raise TraceError(
        f"the tracing process ended with status {ending.return_code} and no answer", detail=ending.log_tail or None
    )
