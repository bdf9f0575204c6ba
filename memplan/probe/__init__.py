"""Live trials: what one recipe really needs, found out in a child process; the search over sizes, and the journal."""

from __future__ import annotations

from memplan.probe.journal import Journal, JournalRun, StoredRun
from memplan.probe.launcher import run_trial
from memplan.probe.search import (
    PredictedPeak,
    Reading,
    ReadingKind,
    SearchResult,
    TargetBand,
    find_micro_batch,
)
from memplan.probe.trials import TrialPhase, TrialProgress, TrialRequest

__all__ = [
    "Journal",
    "JournalRun",
    "PredictedPeak",
    "Reading",
    "ReadingKind",
    "SearchResult",
    "StoredRun",
    "TargetBand",
    "TrialPhase",
    "TrialProgress",
    "TrialRequest",
    "find_micro_batch",
    "run_trial",
]
