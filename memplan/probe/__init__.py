"""Live trials: what one recipe really needs, found out in a child process; the search over sizes, and the journal.

The public names are loaded on first use: what a trial's process imports beyond the user's own run counts as memory.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memplan.probe.journal import Journal, JournalRun, StoredRun, StoredTrial
    from memplan.probe.launcher import run_trial, trial_template
    from memplan.probe.search import (
        Reading,
        ReadingKind,
        SearchResult,
        SearchTarget,
        find_micro_batch,
    )
    from memplan.probe.trials import TrialPhase, TrialProgress, TrialRequest

_HOMES = {
    "Journal": "journal",
    "JournalRun": "journal",
    "Reading": "search",
    "ReadingKind": "search",
    "SearchResult": "search",
    "SearchTarget": "search",
    "StoredRun": "journal",
    "StoredTrial": "journal",
    "TrialPhase": "trials",
    "TrialProgress": "trials",
    "TrialRequest": "trials",
    "find_micro_batch": "search",
    "run_trial": "launcher",
    "trial_template": "launcher",
}

__all__ = [
    "Journal",
    "JournalRun",
    "Reading",
    "ReadingKind",
    "SearchResult",
    "SearchTarget",
    "StoredRun",
    "StoredTrial",
    "TrialPhase",
    "TrialProgress",
    "TrialRequest",
    "find_micro_batch",
    "run_trial",
    "trial_template",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'memplan.probe' has no attribute {name!r}")
    return getattr(importlib.import_module(f"memplan.probe.{_HOMES[name]}"), name)
