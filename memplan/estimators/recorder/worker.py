"""The child process: load the workload, trace its step at a few micro-batch sizes, reply with a ``StepTrace``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from memplan.children import serve
from memplan.errors import MemplanError
from memplan.estimators.recorder.compiled_calls import redirect_compiled_calls
from memplan.estimators.recorder.workload_trace import trace_workload
from memplan.training.skipped_initialisation import patch_initialisers

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.estimators.tracing import TraceRequest


def preload() -> None:
    """Import what every trace imports beside this module: torch loads it when the first optimizer is made."""
    import torch._dynamo  # noqa: PLC0415, F401 - 80 MiB of modules (torch 2.13)


def answer(request: TraceRequest, reply: Callable[[object], None]) -> None:
    """Reply with the trace, or with the error that is for the user."""
    patch_initialisers()
    redirect_compiled_calls()
    torch.compiler.set_stance("force_eager")  # what PyTorch itself compiles: two steps are too few to be worth it
    try:
        reply(trace_workload(request))
    except MemplanError as error:
        reply(error)


if __name__ == "__main__":
    serve(answer, preload=preload)
