"""The ways in which steps end on a device, measured or predicted, and in which runs do."""

from __future__ import annotations

from enum import StrEnum


class OutcomeKind(StrEnum):
    """How a trial ended, or how a step is predicted to end."""

    FITS = "fits"
    DEVICE_OUT_OF_MEMORY = "out of memory (device)"
    HOST_OUT_OF_MEMORY = "out of memory (host)"
    ALLOCATOR_RETRIES = "allocator retries"
    KERNEL_FAILURE = "kernel failure"
    USER_ERROR = "user error"
    NON_FINITE_LOSS = "non-finite loss"
    NEVER_STEPPED = "never stepped"
    TOO_FEW_STEPS = "too few steps"
    TIMEOUT = "timeout"
    CRASH = "crash"

    @property
    def is_too_large(self) -> bool:
        """Whether a smaller micro-batch could help; true for nothing but memory."""
        return self in (
            OutcomeKind.DEVICE_OUT_OF_MEMORY,
            OutcomeKind.HOST_OUT_OF_MEMORY,
            OutcomeKind.ALLOCATOR_RETRIES,
        )


class RunStatus(StrEnum):
    """How a run stands: its end, or why it has none."""

    FINISHED = "finished"
    FAILED = "failed"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
