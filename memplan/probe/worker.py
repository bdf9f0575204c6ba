"""The child side of one live trial: ``python -m memplan.probe.worker``, a process that is thrown away.

As a template it loads torch once, and every trial is a fork of it.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING

from memplan.children import serve
from memplan.probe.optimizer_rates import RatesRequest
from memplan.probe.trials import ForkRefused, TrialPhase, TrialProgress

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.probe.trials import TrialRequest


def main() -> None:
    """Serve one trial, or fork one for each order."""
    serve(_run, preload=_preload, is_spoilt=_has_lost_cuda, before_forks=_set_imports_aside)


def _preload() -> None:
    """Import what every trial imports: torch, and what torch itself loads when the first optimizer is made."""
    import torch._dynamo  # noqa: PLC0415, F401 - 80 MiB of modules (torch 2.13)

    import memplan.probe.trial_run  # noqa: PLC0415, F401 - and with it torch

    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("torch.profiler._cupti_monitor")  # by the first optimizer step, where torch has it


def _set_imports_aside() -> None:
    from memplan.probe.known_blocks import set_objects_aside  # noqa: PLC0415 - it imports torch

    set_objects_aside()


def _run(request: TrialRequest | RatesRequest, reply: Callable[[object], None]) -> None:
    if isinstance(request, RatesRequest):
        from memplan.probe.optimizer_rates_run import run_rates  # noqa: PLC0415 - it imports torch, as below

        run_rates(request, reply)
        return
    reply(TrialProgress(phase=TrialPhase.STARTING))
    # torch is loaded only once the child is guarded and has reported to its parent
    from memplan.probe.trial_run import run_request  # noqa: PLC0415

    if _has_lost_cuda():
        reply(ForkRefused())
        return
    run_request(request, reply)


def _has_lost_cuda() -> bool:
    import torch  # noqa: PLC0415 - see above

    return bool(torch.cuda._is_in_bad_fork())  # noqa: SLF001 - torch's own question, asked before it makes a context


if __name__ == "__main__":
    main()
