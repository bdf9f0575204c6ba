"""What memplan finds out, as values: what it predicts, and what live trials measure.

Every figure says which peak it is. *Allocated* is bytes in live blocks of the allocator, *reserved* is what the
allocator holds from the driver, *process* adds the context and libraries, *device* adds what others use on the card.
On the CPU no reserved peak is measured (None), process is the resident set, and device equals process.
"""

from memplan.results.breakdown import COMPONENTS, BreakdownBytes, Component, PeakShare, Phase
from memplan.results.estimates import ContextBasis, DrawnSteps, Estimate, LargestMicroBatch, Saving
from memplan.results.outcome_kinds import OutcomeKind, RunStatus
from memplan.results.trials import (
    LoaderSpeed,
    Measurement,
    Outcome,
    PrecisionVerdict,
    ProbeResult,
    Trial,
    TypicalStep,
    timed_loader,
)

__all__ = [
    "COMPONENTS",
    "BreakdownBytes",
    "Component",
    "ContextBasis",
    "DrawnSteps",
    "Estimate",
    "LargestMicroBatch",
    "LoaderSpeed",
    "Measurement",
    "Outcome",
    "OutcomeKind",
    "PeakShare",
    "Phase",
    "PrecisionVerdict",
    "ProbeResult",
    "RunStatus",
    "Saving",
    "Trial",
    "TypicalStep",
    "timed_loader",
]
