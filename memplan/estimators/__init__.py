"""Estimates: trace a training step on fake tensors, replay it on the target device's allocator, answer in bytes."""

from __future__ import annotations

from memplan.estimators.answers import estimate, largest_micro_batch, process_peak
from memplan.estimators.step_snapshot import step_snapshot
from memplan.estimators.step_trace import StepTrace
from memplan.estimators.tracing import TracedSetting, trace_step, trace_steps, trace_template

__all__ = [
    "StepTrace",
    "TracedSetting",
    "estimate",
    "largest_micro_batch",
    "process_peak",
    "step_snapshot",
    "trace_step",
    "trace_steps",
    "trace_template",
]
