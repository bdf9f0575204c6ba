"""What a running trial is held to, as its readings come in: each limit says why to stop, or None. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.probe.trials import TrialVerdict
from memplan.results import OutcomeKind
from memplan.units import format_bytes

if TYPE_CHECKING:
    from memplan.probe.trials import StepLimit


def over_step_limit(limit: StepLimit | None, *, step: int, running_s: float) -> TrialVerdict | None:
    """Report an optimizer step that takes longer than it may.

    Args:
        limit: of each step; None where there is none.
        step: number of the step that runs.
        running_s: wall time since it started.
    """
    if limit is None or running_s <= limit.limit_s:
        return None
    evidence = f"step {step} still running after {running_s:.0f} s ({_usual(limit)})"
    return TrialVerdict(kind=OutcomeKind.TIMEOUT, evidence=evidence)


def over_resident_limit(resident_bytes: int, limit_bytes: int) -> TrialVerdict | None:
    """Report a trial on the CPU whose processes hold more than they may together."""
    if resident_bytes <= limit_bytes:
        return None
    evidence = f"stopped at {format_bytes(resident_bytes)} resident, above its {format_bytes(limit_bytes)}"
    return TrialVerdict(kind=OutcomeKind.HOST_OUT_OF_MEMORY, evidence=evidence)


def _usual(limit: StepLimit) -> str:
    if limit.usual_s is None:
        return f"limit {limit.limit_s:.0f} s"
    return f"{limit.usual_precision or 'usually'}: {limit.usual_s:.1f} s"
