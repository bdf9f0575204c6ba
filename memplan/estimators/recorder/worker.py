"""The child process: load the workload, trace its step at a few micro-batch sizes, reply with a ``StepTrace``."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

import torch
from torch._inductor import config

from memplan.children import Forks, serve
from memplan.errors import MemplanError
from memplan.estimators.recorder.compiled_calls import redirect_compiled_calls
from memplan.estimators.recorder.workload_trace import trace_workload
from memplan.estimators.tracing import TraceBeside
from memplan.training.skipped_initialisation import patch_initialisers

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.estimators.recorder.workload_trace import Trace
    from memplan.estimators.tracing import TraceRequest

# How long forks may take once the first setting is traced, in times that it took for each: they yield the processor.
_PATIENCE, _LEAST_PATIENCE_S = 3, 30.0


def preload() -> None:
    """Import what every trace imports beside this module: torch loads it when the first optimizer is made."""
    _start_no_compilers()
    import torch._dynamo  # noqa: PLC0415, F401 - 80 MiB of modules (torch 2.13)


def answer(requests: tuple[TraceRequest, ...], reply: Callable[[object], None]) -> None:
    """Reply with the trace of the first request, or with the error that is for the user, and with others' traces.

    The others are traced at the same time, in forks that share what the workload imports: where one cannot be, or not
    in some multiple of the time that the first took, the reply lacks it.
    """
    first, *others = requests
    forks, began_s = Forks(), time.monotonic()

    def begin_others(trace: Trace) -> None:
        nonlocal began_s
        began_s = time.monotonic()
        for each in others:
            forks.start(functools.partial(_traced_beside, trace, each))

    patch_initialisers()
    redirect_compiled_calls()
    torch.compiler.set_stance("force_eager")  # what PyTorch itself compiles: two steps are too few to be worth it
    _start_no_compilers()
    try:
        reply(trace_workload(first, begin_others))
    except MemplanError as error:
        reply(error)
        return
    first_took_s = time.monotonic() - began_s
    for each in forks.results(within_s=max(_LEAST_PATIENCE_S, _PATIENCE * len(requests) * first_took_s)):
        reply(each)


def _start_no_compilers() -> None:
    """Keep Inductor from starting processes and threads as it is imported: no kernel is built."""
    config.compile_threads = 1


def _traced_beside(trace: Trace, request: TraceRequest) -> TraceBeside:
    return TraceBeside(setting=request.setting, trace=trace(request))


if __name__ == "__main__":
    serve(answer, preload=preload)
