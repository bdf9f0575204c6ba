"""The predicted timeline of a traced step as a memory snapshot, with operator, module and component of every block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.devices.cards import DeviceKind
from memplan.errors import UsageError
from memplan.estimators.allocators.process_allocators import DEFAULT_ALLOCATORS
from memplan.estimators.allocators.snapshot import predicted_snapshot, snapshot_bytes
from memplan.estimators.figures import events_at
from memplan.results import Component

if TYPE_CHECKING:
    from memplan.estimators.allocators.process_allocators import ProcessAllocators
    from memplan.estimators.step_trace import StepTrace, Timeline


def step_snapshot(
    trace: StepTrace, *, micro_batch_size: int, allocators: ProcessAllocators = DEFAULT_ALLOCATORS
) -> bytes:
    """Return the content of a snapshot file that PyTorch's memory visualiser opens.

    Raises:
        UsageError: the trace is for the CPU, or holds only for the sizes that were traced.
    """
    if trace.device_kind is not DeviceKind.CUDA:
        raise UsageError("a memory snapshot shows the CUDA allocator", hint="choose a card with --device")
    timeline = trace.timeline_at(micro_batch_size)
    if timeline is None:
        sizes = ", ".join(str(size) for size in trace.traced_batch_sizes)
        raise UsageError(
            f"micro_batch_size={micro_batch_size}: the allocations of {trace.workload_name} depend on the micro-batch",
            hint=f"a snapshot can be written for {sizes}",
        )
    events = events_at(timeline, micro_batch_size)
    made = predicted_snapshot(
        events.blocks.tolist(),
        events.requests_bytes.tolist(),
        _labels(timeline),
        config=allocators.cuda,
        cache_returns=events.cache_returns,
        side_streams=events.side_streams,
        graph_streams=events.graph_streams,
    )
    return snapshot_bytes(made)


def _labels(timeline: Timeline) -> list[tuple[str, ...]]:
    modules = [name or "(model)" for name in timeline.module_names]
    return [
        (timeline.operator_names[operator], modules[module], Component(component).name.lower())
        for operator, module, component in zip(timeline.operators, timeline.modules, timeline.components, strict=True)
    ]
