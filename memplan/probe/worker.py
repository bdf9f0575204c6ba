"""The child side of one live trial: ``python -m memplan.probe.worker``, a process that is thrown away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.children import serve
from memplan.probe.trials import TrialPhase, TrialProgress

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.probe.trials import TrialRequest


def main() -> None:
    """Serve one trial."""
    serve(_run)


def _run(request: TrialRequest, reply: Callable[[object], None]) -> None:
    reply(TrialProgress(phase=TrialPhase.STARTING))
    # torch is loaded only once the child is guarded and has told its parent that it is there
    from memplan.probe.trial_run import run_request  # noqa: PLC0415

    run_request(request, reply)


if __name__ == "__main__":
    main()
