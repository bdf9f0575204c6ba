"""The environment of processes that run a step without a card, the same for traces and trials: one template has it."""

from __future__ import annotations

QUIET_PROFILER = {"KINETO_LOG_LEVEL": "99"}  # its start and stop messages are no part of a trial's output
# Such a process sees no card: torch's optimizers would wake it, and user code that finds one use it.
WITHOUT_CARD = {**QUIET_PROFILER, "CUDA_VISIBLE_DEVICES": ""}
